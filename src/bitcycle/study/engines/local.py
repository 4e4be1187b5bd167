"""Runs as processes of this machine, one each: a process that dies takes no other with it."""

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

from bitcycle.study.attempt import Ending, attempt, log_file
from bitcycle.study.engines.base import Engine
from bitcycle.train.config import RunConfig
from bitcycle.train.signals import unheard_by_children

PATIENCE = 10.0  # seconds that a killed process may take to be gone


@dataclass(frozen=True)
class Child:
    """A process, the pipe its ending comes through, and what it trains."""

    process: Any
    reader: Connection
    config: RunConfig


class LocalEngine(Engine):
    """A process per run, started anew: threads of torch do not survive a fork."""

    def __init__(self, num_jobs: int) -> None:
        self.num_jobs = num_jobs
        self._children: dict[str, Child] = {}

    @property
    def running(self) -> tuple[str, ...]:
        """Names of the runs that have been started and have not ended."""
        return tuple(self._children)

    def start(self, config: RunConfig) -> None:
        """A new process that trains it."""
        context = get_context("spawn")
        reader, writer = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(config, writer), name=config.run_name)
        with unheard_by_children():
            process.start()
        writer.close()  # the child has its own
        self._children[config.run_name] = Child(process, reader, config)

    def wait(self, seconds: float) -> list[Ending]:
        """The endings of processes that are gone."""
        ends = {child.process.sentinel: name for name, child in self._children.items()}
        gone = [ends[end] for end in wait(list(ends), seconds) if isinstance(end, int)]
        return [_ending(self._children.pop(name)) for name in gone]

    def stop(self) -> None:
        """One that trains writes a checkpoint first."""
        for child in self._children.values():
            child.process.terminate()

    def kill(self) -> None:
        """Nothing is left."""
        for child in self._children.values():
            child.process.kill()
        for child in self._children.values():
            child.process.join(PATIENCE)
            child.reader.close()
        self._children.clear()


def _work(config: RunConfig, writer: Connection) -> None:
    """What the process does."""
    threading.Thread(target=_stop_without_parent, daemon=True).start()
    ending = attempt(config)
    with suppress(BrokenPipeError):  # nobody is left to read it
        writer.send_bytes(json.dumps(asdict(ending)).encode())
    writer.close()


def _stop_without_parent() -> None:
    """A study that was killed must not go on in the background."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _ending(child: Child) -> Ending:
    """What the process said, or what can be told of one that said nothing."""
    child.process.join()
    name, code = child.config.run_name, child.process.exitcode
    try:
        if child.reader.poll():
            return Ending(**json.loads(child.reader.recv_bytes()))
    except EOFError:
        pass
    finally:
        child.reader.close()
        child.process.close()
    if code in (-signal.SIGTERM, -signal.SIGINT):
        return Ending(name=name, state="stopped", message="stopped before its first step")
    return Ending(name=name, state="failed", message=died(code, str(log_file(child.config))))


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
