"""The points of a surface that are already computed, in a file that an interruption cannot harm."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, ExitStack, contextmanager
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from typing import Any, Protocol

from bitcycle.files import Appender
from bitcycle.landscape.result import Grid, Point, from_plain, to_plain
from bitcycle.train.signals import block_sigint


class PointFile:
    """One line for what the points belong to, then one line each: [row, column, loss, seconds].

    Lines that are cut short, by a killed process or a full disk, do not count. A file of other
    points (another grid, other weights) is begun anew. Seconds add up over interruptions; a line
    may lack them.
    """

    def __init__(self, path: Path, origin: Mapping[str, Any]) -> None:
        self.path = path
        self.losses: dict[Point, float] = {}
        self._seconds: dict[Point, float | None] = {}
        self._origin = to_plain(dict(origin))
        self._appender: Appender | None = None

    @property
    def seconds(self) -> float | None:
        """Wall-clock of all points together; None when some do not tell."""
        known = [took for took in self._seconds.values() if took is not None]
        return sum(known) if len(known) == len(self._seconds) else None

    @contextmanager
    def opened(self) -> Iterator[PointFile]:
        """Read what is there and take more; for one process at a time."""
        with self.path.open("a+b") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ValueError(
                    f"{self.path} is being written by another process; wait for it or stop it"
                ) from None
            handle.seek(0)
            text = handle.read().decode(errors="replace")
            self.losses, self._seconds = self._read(text)
            self._appender = Appender(self.path)
            try:
                if not self.losses:
                    os.truncate(self.path, 0)
                    self._appender.add(json.dumps(self._origin))
                elif not text.endswith("\n"):
                    self._appender.add("")
                yield self
            finally:
                self._appender.close()
                self._appender = None

    def read(self) -> dict[Point, float]:
        """The points that are there, without waiting for whoever may be writing more."""
        if not self.path.exists():
            return {}
        return self._read(self.path.read_text(encoding="utf-8", errors="replace"))[0]

    def _read(self, text: str) -> tuple[dict[Point, float], dict[Point, float | None]]:
        losses: dict[Point, float] = {}
        seconds: dict[Point, float | None] = {}
        header, *lines = text.split("\n")
        if _parse(header) != self._origin:
            return losses, seconds
        for entry in map(_parse, lines):
            if isinstance(entry, list) and len(entry) in (3, 4):
                row, column, loss, *took = entry
                losses[row, column] = from_plain(loss)
                seconds[row, column] = took[0] if took else None
        return losses, seconds

    def add(self, point: Point, loss: float, seconds: float | None = None) -> None:
        """Keep one more; seconds: since the one before."""
        assert self._appender is not None
        took = [] if seconds is None else [round(seconds, 4)]
        self._appender.add(json.dumps([*point, to_plain(loss), *took]))
        self.losses[point] = loss
        self._seconds[point] = seconds

    def remove(self) -> None:
        """No longer needed."""
        self.path.unlink(missing_ok=True)


def _parse(line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return None


LossAt = Callable[[float, float], float]
AHEAD = 2  # points that wait for each process, so that none waits for a point


class Opener(Protocol):
    """Makes the function (alpha, beta) -> loss, in whichever process calls it."""

    def opened(self) -> AbstractContextManager[LossAt]:
        """Everything loaded inside the `with`."""
        ...


def compute_points(
    opener: Opener, grid: Grid, points: Sequence[Point], *, jobs: int = 1
) -> Generator[tuple[Point, float], None, None]:
    """(point, loss) as they are done; the caller may stop at any of them.

    jobs > 1: that many processes, each of which opens the surface for itself (`opener` is pickled).
    """
    if jobs < 1:
        raise ValueError(f"jobs ({jobs}) must be at least 1")
    if not points:
        return
    values = grid.values
    if jobs == 1 or len(points) < 2:
        with opener.opened() as loss_at:
            for i, j in points:
                yield (i, j), loss_at(values[i], values[j])
        return
    # spawn: threads of torch do not survive a fork
    pool = ProcessPoolExecutor(
        min(jobs, len(points)), mp_context=get_context("spawn"), initializer=_begin,
        initargs=(opener,),
    )  # fmt: skip
    others = active_children()
    try:
        yield from _in_pool(pool, values, points, jobs)
    except BrokenProcessPool:
        raise OSError(
            "a process that computed grid points ended; its own message, if any, is above (too "
            "little memory? use fewer jobs). Points that were done are kept"
        ) from None
    except BaseException:  # the caller wants no more: what is under way is given up
        for child in set(active_children()).difference(others):
            child.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _in_pool(
    pool: ProcessPoolExecutor, values: tuple[float, ...], points: Sequence[Point], jobs: int
) -> Iterator[tuple[Point, float]]:
    left = list(reversed(points))
    running: dict[Future[float], Point] = {}
    while left or running:
        while left and len(running) < AHEAD * jobs:
            i, j = left.pop()
            with block_sigint():
                running[pool.submit(_loss_at, values[i], values[j])] = i, j
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            yield running.pop(future), future.result()


_resources = ExitStack()  # of a process that computes points, for as long as it lives
_here: LossAt | None = None


def _begin(opener: Opener) -> None:
    """In a new process: load what every point needs."""
    global _here
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _here = _resources.enter_context(opener.opened())


def _loss_at(alpha: float, beta: float) -> float:
    assert _here is not None
    return _here(alpha, beta)


def _end_with_parent() -> None:
    """A parent that is killed cannot tell its children to stop."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
