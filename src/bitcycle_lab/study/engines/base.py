"""The interface of an engine, and `train_run`, which every engine calls for each run."""

from __future__ import annotations

import fcntl
import os
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TextIO, get_args

from bitcycle.registry import unknown_name
from bitcycle_lab.plugins import import_plugins
from bitcycle_lab.study.study import run_directory
from bitcycle_lab.train.config import RunConfig
from bitcycle_lab.train.result import RunResult
from bitcycle_lab.train.run_directory import RunBusyError
from bitcycle_lab.train.signals import Interrupted

EngineName = Literal["local", "ray"]
MAX_MESSAGE = 2000  # characters of an error message; the log has all of it


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """How the process of a run ended.

    stopped: by a signal, the run can be resumed. busy: another process trains this run.
    """

    name: str
    state: Literal["done", "failed", "stopped", "busy"]
    message: str = ""


class Engine(ABC):
    """Trains at most `num_jobs` runs at the same time. The end of a `with` block ends them all."""

    num_jobs: int

    @abstractmethod
    def start(self, config: RunConfig) -> None:
        """Start a run. Must not be called when `is_full`."""

    @abstractmethod
    def wait(self, seconds: float) -> list[RunOutcome]:
        """Wait for a run to end, at most so long; return all that ended since the last call."""

    @abstractmethod
    def stop(self) -> None:
        """Ask all runs to write a checkpoint and end; `wait` then returns their outcomes."""

    @abstractmethod
    def kill(self) -> None:
        """End all runs at once and release what the engine holds."""

    @property
    @abstractmethod
    def running(self) -> tuple[str, ...]:
        """Names of the runs that have been started and have not ended."""

    @property
    def is_full(self) -> bool:
        """Whether another run must wait."""
        return len(self.running) >= self.num_jobs

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()


def make_engine(
    name: str, *, num_jobs: int | None, threads: int = 1, address: str | None = None
) -> Engine:
    """Make an engine by its name, `local` or `ray`.

    num_jobs: runs at a time; None: one for `local`, and for `ray` what the cluster's processors
    allow. threads: of the largest run; a Ray task reserves at least so many processors.
    """
    if name not in get_args(EngineName):
        raise unknown_name("engine", name, get_args(EngineName))
    if num_jobs is not None and num_jobs < 1:
        raise ValueError(f"jobs ({num_jobs}) must be at least 1")
    if name == "ray":
        from bitcycle_lab.study.engines.ray import RayEngine

        return RayEngine(num_jobs=num_jobs, threads=threads, address=address)
    if address is not None:
        raise ValueError(f"--address ({address}) is of a Ray cluster: add --engine ray")
    from bitcycle_lab.study.engines.local import LocalEngine

    return LocalEngine(num_jobs or 1)


# -- training one run -----------------------------------------------------------------------------


def log_file(config: RunConfig) -> Path:
    """The output of a run's process, with its traceback: `<output>/studies/logs/<run>.txt`."""
    return Path(config.output) / "studies" / "logs" / f"{config.run_name}.txt"


def train_run(config: RunConfig, plugins: Sequence[str] = ()) -> RunOutcome:
    """Train or resume a run, with its output in the log. Never raises.

    plugins: what the study's process imported (`bitcycle_lab.plugins`), to be imported here too.

    The log is locked meanwhile. If two studies want one run, the second gets "busy" before it
    touches the run or the log of the first.
    """
    log, name = log_file(config), config.run_name
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", buffering=1, encoding="utf-8") as file:
            if not _lock(file):
                return RunOutcome(name=name, state="busy", message="another process has this run")
            file.truncate(0)  # of an earlier try
            with _output_to(file):
                outcome = _train_run(config, plugins)
            if os.fstat(file.fileno()).st_size == 0:
                log.unlink(missing_ok=True)
            fcntl.flock(file, fcntl.LOCK_UN)  # processes that it started may still hold the file
    except OSError as error:  # no room for a log
        return RunOutcome(name=name, state="failed", message=_describe(error))
    if outcome.state == "failed":
        return RunOutcome(name=name, state="failed", message=f"{outcome.message} (log: {log})")
    return outcome


def _train_run(config: RunConfig, plugins: Sequence[str]) -> RunOutcome:
    name = config.run_name
    try:
        import_plugins(plugins)
        train_or_resume(config)
    except (Interrupted, KeyboardInterrupt) as error:
        if not run_directory(config).is_finished:
            return RunOutcome(name=name, state="stopped", message=str(error) or "interrupted")
    except RunBusyError as error:
        return RunOutcome(name=name, state="busy", message=str(error))
    except BaseException as error:
        traceback.print_exc()
        return RunOutcome(name=name, state="failed", message=_describe(error))
    return RunOutcome(name=name, state="done")


def train_or_resume(config: RunConfig) -> RunResult:
    """Start a run or resume it, also when its output, tracking or data folder has moved."""
    from bitcycle_lab.train.run import resume_or_run  # here: a study's status needs no torch

    directory = run_directory(config)
    if directory.is_finished:
        return RunResult.read(directory.path)
    return resume_or_run(config)


def _lock(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _describe(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if len(text) > MAX_MESSAGE:
        text = f"{text[:MAX_MESSAGE]}..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@contextmanager
def _output_to(file: TextIO) -> Iterator[None]:
    """Redirect standard output and error to a file, also what C code prints."""
    kept = [os.dup(descriptor) for descriptor in (1, 2)]
    try:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
        with redirect_stdout(file), redirect_stderr(file):
            yield
    finally:
        for descriptor, former in zip((1, 2), kept, strict=True):
            os.dup2(former, descriptor)
            os.close(former)
