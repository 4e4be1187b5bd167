"""What an engine does: start runs, say which have ended, ask them to stop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Literal, Self, get_args

from bitcycle.registry import unknown_name
from bitcycle.study.attempt import Ending
from bitcycle.train.config import RunConfig

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
