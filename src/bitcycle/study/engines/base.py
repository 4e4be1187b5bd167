"""What an engine does: start runs, say which have ended, ask them to stop."""

from __future__ import annotations

import fcntl
import os
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TextIO, get_args

from bitcycle.analysis.config_id import config_id
from bitcycle.files import write_text
from bitcycle.registry import unknown_name
from bitcycle.train.config import RunConfig
from bitcycle.train.config_file import to_yaml
from bitcycle.train.result import RunResult
from bitcycle.train.run import resume, resume_or_run, run
from bitcycle.train.run_directory import RunDirectory
from bitcycle.train.signals import Interrupted

LONGEST = 2000  # characters of an error that are kept; the log has all of it


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How an attempt at a run ended.

    stopped: by a signal, it can go on. busy: another process has this run, it may finish it.
    """

    name: str
    state: Literal["done", "failed", "stopped", "busy"]
    message: str = ""


def run_folder(config: RunConfig) -> RunDirectory:
    """Where a run is written."""
    return RunDirectory(Path(config.output) / config.run_name)


def log_file(config: RunConfig) -> Path:
    """What a run's process printed, its traceback among it: `<output>/studies/logs/<run>.txt`."""
    return Path(config.output) / "studies" / "logs" / f"{config.run_name}.txt"


def attempt(config: RunConfig) -> Ending:
    """Train, with everything that is printed going to the log; never raises.

    The log is locked meanwhile: of two studies that want one run, the second is told "busy" before
    it touches the run or what the first one has printed.
    """
    log, name = log_file(config), config.run_name
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", buffering=1, encoding="utf-8") as file:
            if not _lock(file):
                return Ending(name=name, state="busy", message="another process has this run")
            file.truncate(0)  # of a former attempt
            with _output_to(file):
                ending = _attempt(config)
            if os.fstat(file.fileno()).st_size == 0:
                log.unlink(missing_ok=True)
            fcntl.flock(file, fcntl.LOCK_UN)  # processes that it started may still hold the file
    except OSError as error:  # no room for a log
        return Ending(name=name, state="failed", message=_described(error))
    if ending.state == "failed":
        return Ending(name=name, state="failed", message=f"{ending.message} (log: {log})")
    return ending


def _attempt(config: RunConfig) -> Ending:
    name = config.run_name
    try:
        finish(config)
    except (Interrupted, KeyboardInterrupt) as error:
        if not run_folder(config).is_finished:
            return Ending(name=name, state="stopped", message=str(error) or "interrupted")
    except BaseException as error:
        if is_held(run_folder(config)):
            return Ending(name=name, state="busy", message=str(error))
        traceback.print_exc()
        return Ending(name=name, state="failed", message=_described(error))
    return Ending(name=name, state="done")


def finish(config: RunConfig) -> RunResult:
    """Begin the run or go on with it, also when its files, tracking or data have moved since."""
    directory = run_folder(config)
    if directory.is_finished:
        return RunResult.read(directory.path)
    if not directory.exists:
        return run(config)
    if config_id(directory.read_config()) != config_id(config):
        return resume_or_run(config)  # raises, and names what differs
    text = to_yaml(config)
    if directory.config_file.read_text(encoding="utf-8") != text:
        with directory.locked():
            write_text(directory.config_file, text)
    return resume(directory.path)


def is_held(directory: RunDirectory) -> bool:
    """Whether a process trains this run at the moment."""
    try:
        with (directory.path / ".lock").open("rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _described(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _lock(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _output_to(file: TextIO) -> Iterator[None]:
    """Standard output and error into a file, also what is printed from outside Python."""
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


EngineName = Literal["local", "ray"]


class Engine(ABC):
    """Executes runs at the same time, at most `num_jobs` of them; a `with` leaves none behind."""

    num_jobs: int

    @abstractmethod
    def start(self, config: RunConfig) -> None:
        """Begin one; not to be called when `is_full`."""

    @abstractmethod
    def wait(self, seconds: float) -> list[Ending]:
        """How runs ended that did so since the last call; waits for one, but not longer."""

    @abstractmethod
    def stop(self) -> None:
        """Ask all for a checkpoint and an end; `wait` then gives their endings."""

    @abstractmethod
    def kill(self) -> None:
        """End all at once and let go of what the engine holds."""

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
    """An engine by its name. threads: of the largest run, which a Ray task reserves at least.

    num_jobs: by default one at a time here, and on Ray what its processors allow.
    """
    if name not in get_args(EngineName):
        raise unknown_name("engine", name, get_args(EngineName))
    if num_jobs is not None and num_jobs < 1:
        raise ValueError(f"jobs ({num_jobs}) must be at least 1")
    if name == "ray":
        from bitcycle.study.engines.ray import RayEngine

        return RayEngine(num_jobs=num_jobs, threads=threads, address=address)
    if address is not None:
        raise ValueError(f"--address ({address}) is of a Ray cluster: add --engine ray")
    from bitcycle.study.engines.local import LocalEngine

    return LocalEngine(num_jobs or 1)
