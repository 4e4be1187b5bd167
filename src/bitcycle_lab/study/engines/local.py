"""The local engine: worker processes on this machine, each trains one run after another.

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

from bitcycle.native.allocator import keep_freed_memory
from bitcycle_lab.plugins import imported_plugins
from bitcycle_lab.study.engines.base import Engine, RunOutcome, log_file, train_run
from bitcycle_lab.train.config import RunConfig
from bitcycle_lab.train.signals import block_sigint

EXIT_SECONDS = 10.0  # that a worker may take to end


@dataclass
class Worker:
    """A process, the pipe to it, and the run that it trains. config: None while it is idle."""

    process: Any
    pipe: Connection
    config: RunConfig | None = None


class LocalEngine(Engine):
    """At most `num_jobs` workers, spawned when needed: torch's threads do not survive a fork."""

    def __init__(self, num_jobs: int) -> None:
        self.num_jobs = num_jobs
        self._workers: list[Worker] = []

    @property
    def running(self) -> tuple[str, ...]:
        """Names of the runs that have been started and have not ended."""
        return tuple(worker.config.run_name for worker in self._workers if worker.config)

    def start(self, config: RunConfig) -> None:
        """Send the run to an idle worker, or to a new one."""
        for worker in [worker for worker in self._workers if worker.config is None]:
            if _send(config, worker):
                return
            self._remove(worker)  # it died while it was idle
        worker = _new_worker()
        self._workers.append(worker)
        _send(config, worker)  # if the worker dies at once, `wait` returns the outcome

    def wait(self, seconds: float) -> list[RunOutcome]:
        """The outcomes of the runs that have ended."""
        busy = {worker.pipe: worker for worker in self._workers if worker.config is not None}
        ready = wait(list(busy), seconds)
        return [self._outcome(busy[pipe]) for pipe in ready if isinstance(pipe, Connection)]

    def _outcome(self, worker: Worker) -> RunOutcome:
        """What the worker reported, or what its exit code means."""
        assert worker.config is not None
        try:
            outcome = RunOutcome(**json.loads(worker.pipe.recv_bytes()))
        except (EOFError, ConnectionResetError):
            worker.process.join()
            outcome = outcome_of_exit(worker.process.exitcode, worker.config)
        worker.config = None
        if outcome.state in ("failed", "stopped"):  # the next run gets a clean process
            self._remove(worker)
        return outcome

    def _remove(self, worker: Worker) -> None:
        """Close the pipe, which ends an idle worker; kill it if it does not end."""
        self._workers.remove(worker)
        worker.pipe.close()
        worker.process.join(EXIT_SECONDS)
        worker.process.kill()
        worker.process.join(EXIT_SECONDS)

    def stop(self) -> None:
        """Ask all workers to write a checkpoint and end."""
        for worker in self._workers:
            worker.process.terminate()

    def kill(self) -> None:
        """Kill the workers that train, and let idle ones end."""
        for worker in self._workers:
            if worker.config is not None:
                worker.process.kill()
        for worker in list(self._workers):
            self._remove(worker)


def _new_worker() -> Worker:
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_work, args=(theirs, imported_plugins()), name="bitcycle worker"
    )
    with block_sigint():
        process.start()
    theirs.close()  # the worker has its own
    return Worker(process, ours)


def _send(config: RunConfig, worker: Worker) -> bool:
    """Send a run to a worker; False if the worker is dead."""
    worker.config = config
    try:
        worker.pipe.send(config)
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


def _work(pipe: Connection, plugins: tuple[str, ...] = ()) -> None:
    """Train every run that comes through the pipe, until it is closed."""
    threading.Thread(target=_stop_without_parent, daemon=True).start()
    keep_freed_memory()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            outcome = train_run(pipe.recv(), plugins)
            pipe.send_bytes(json.dumps(asdict(outcome)).encode())


def _stop_without_parent() -> None:
    """Stop the worker when the study's process is gone."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def outcome_of_exit(code: int | None, config: RunConfig) -> RunOutcome:
    """The outcome of a run whose process ended without a report."""
    if code in (-signal.SIGTERM, -signal.SIGINT):
        message = "stopped before its first step"
        return RunOutcome(name=config.run_name, state="stopped", message=message)
    message = describe_exit(code, str(log_file(config)))
    return RunOutcome(name=config.run_name, state="failed", message=message)


def describe_exit(code: int | None, log: str) -> str:
    """The error message for the exit code of a process.

    >>> describe_exit(-9, "log.txt")
    'ProcessDied: killed by SIGKILL, perhaps for lack of memory (log: log.txt)'
    """
    how = f"exit code {code}"
    if code is not None and code < 0:
        with suppress(ValueError):
            how = f"killed by {signal.Signals(-code).name}"
    hint = ", perhaps for lack of memory" if code == -signal.SIGKILL else ""
    return f"ProcessDied: {how}{hint} (log: {log})"
