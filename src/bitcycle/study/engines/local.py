"""Runs on worker processes of this machine; each worker trains one run after another.

A worker that dies fails the run it was training and no other; the next run gets a new worker.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from typing import Any

from bitcycle.study.engines.base import Ending, Engine, attempt, log_file
from bitcycle.train.config import RunConfig
from bitcycle.train.signals import block_sigint

PATIENCE = 10.0  # seconds that a killed process may take to be gone


@dataclass
class Worker:
    """A process, the pipe to it, and the run that it trains; None while it is idle."""

    process: Any
    pipe: Connection
    config: RunConfig | None = None


class LocalEngine(Engine):
    """At most `num_jobs` workers, started when needed: torch's threads do not survive a fork."""

    def __init__(self, num_jobs: int) -> None:
        self.num_jobs = num_jobs
        self._workers: list[Worker] = []

    @property
    def running(self) -> tuple[str, ...]:
        """Names of the runs that have been started and have not ended."""
        return tuple(worker.config.run_name for worker in self._workers if worker.config)

    def start(self, config: RunConfig) -> None:
        """Hand the run to an idle worker, or to a new one."""
        for worker in [worker for worker in self._workers if worker.config is None]:
            if _hand_over(config, worker):
                return
            self._remove(worker)  # it died while it was idle
        worker = _new_worker()
        self._workers.append(worker)
        _hand_over(config, worker)  # of one that dies at once `wait` tells the end

    def wait(self, seconds: float) -> list[Ending]:
        """The endings of the runs that are over."""
        busy = {worker.pipe: worker for worker in self._workers if worker.config is not None}
        ready = wait(list(busy), seconds)
        return [self._ending(busy[pipe]) for pipe in ready if isinstance(pipe, Connection)]

    def _ending(self, worker: Worker) -> Ending:
        """What the worker said, or its exit code if it died."""
        assert worker.config is not None
        try:
            ending = Ending(**json.loads(worker.pipe.recv_bytes()))
        except (EOFError, ConnectionResetError):
            worker.process.join()
            ending = judged(worker.process.exitcode, worker.config)
        worker.config = None
        if ending.state in ("failed", "stopped"):  # what a run left behind goes with the process
            self._remove(worker)
        return ending

    def _remove(self, worker: Worker) -> None:
        """An idle worker ends by itself when its pipe is closed."""
        self._workers.remove(worker)
        worker.pipe.close()
        worker.process.join(PATIENCE)
        worker.process.kill()
        worker.process.join(PATIENCE)

    def stop(self) -> None:
        """Ask for a checkpoint and an end."""
        for worker in self._workers:
            worker.process.terminate()

    def kill(self) -> None:
        """End what trains at once, and let idle workers end."""
        for worker in self._workers:
            if worker.config is not None:
                worker.process.kill()
        for worker in list(self._workers):
            self._remove(worker)


def _new_worker() -> Worker:
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs,), name="bitcycle worker")
    with block_sigint():
        process.start()
    theirs.close()  # the worker has its own
    return Worker(process, ours)


def _hand_over(config: RunConfig, worker: Worker) -> bool:
    """Whether the worker is there to take it."""
    worker.config = config
    try:
        worker.pipe.send(config)
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


def _work(pipe: Connection) -> None:
    """Train every run that comes through the pipe, until it is closed."""
    threading.Thread(target=_stop_without_parent, daemon=True).start()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            ending = attempt(pipe.recv())
            pipe.send_bytes(json.dumps(asdict(ending)).encode())


def _stop_without_parent() -> None:
    """A study that was killed must not go on in the background."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def judged(code: int | None, config: RunConfig) -> Ending:
    """How a run ended whose process said nothing."""
    if code in (-signal.SIGTERM, -signal.SIGINT):
        message = "stopped before its first step"
        return Ending(name=config.run_name, state="stopped", message=message)
    message = died(code, str(log_file(config)))
    return Ending(name=config.run_name, state="failed", message=message)


def died(code: int | None, log: str) -> str:
    """The message for a process that ended without a word.

    >>> died(-9, "log.txt")
    'ProcessDied: killed by SIGKILL, perhaps for lack of memory (log: log.txt)'
    """
    how = f"exit code {code}"
    if code is not None and code < 0:
        with suppress(ValueError):
            how = f"killed by {signal.Signals(-code).name}"
    hint = ", perhaps for lack of memory" if code == -signal.SIGKILL else ""
    return f"ProcessDied: {how}{hint} (log: {log})"
