"""The points of a landscape: computed in several processes, and kept in a file as they come."""

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
from bitcycle.landscape.result import Grid, Point, to_plain
from bitcycle.train.signals import block_sigint

LossAt = Callable[[float, float], float]
POINTS_AHEAD = 2  # submitted per process, so that no process waits for a point


class PointFile:
    """A file with the origin of the points, then one line each: [row, column, loss, seconds].

    Incomplete lines, of a killed process or a full disk, are ignored. A file with another origin
    (another grid, other weights) is started again. Seconds add up over interruptions; a line may
    lack them.
    """

    def __init__(self, path: Path, origin: Mapping[str, Any]) -> None:
        self.path = path
        self.losses: dict[Point, float] = {}
        self._seconds: dict[Point, float | None] = {}
        self._origin = to_plain(dict(origin))
        self._appender: Appender | None = None

    @property
    def seconds(self) -> float | None:
        """Wall-clock time of all points; None if some lines lack it."""
        known = [took for took in self._seconds.values() if took is not None]
        return sum(known) if len(known) == len(self._seconds) else None

    @contextmanager
    def opened(self) -> Iterator[PointFile]:
        """Read the file and keep it open for more points; one process at a time."""
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
        """The points in the file, also while another process writes more."""
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
                losses[row, column] = float(loss)
                seconds[row, column] = took[0] if took else None
        return losses, seconds

    def add(self, point: Point, loss: float, seconds: float | None = None) -> None:
        """Append a point. seconds: since the point before."""
        assert self._appender is not None
        took = [] if seconds is None else [round(seconds, 4)]
        self._appender.add(json.dumps([*point, to_plain(loss), *took]))
        self.losses[point] = loss
        self._seconds[point] = seconds

    def remove(self) -> None:
        """Delete the file."""
        self.path.unlink(missing_ok=True)


def _parse(line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return None


# -- computing points -----------------------------------------------------------------------------


class LossSurface(Protocol):
    """Loads a model in the calling process and gives its loss function."""

    def opened(self) -> AbstractContextManager[LossAt]:
        """(alpha, beta) -> loss, inside the `with` block."""
        ...


def compute_points(
    loss_surface: LossSurface, grid: Grid, points: Sequence[Point], *, jobs: int = 1
) -> Generator[tuple[Point, float], None, None]:
    """(point, loss) of every point as it is done; the caller may stop at any of them.

    With `jobs` > 1, each of so many processes opens the pickled surface itself.
    """
    if jobs < 1:
        raise ValueError(f"jobs ({jobs}) must be at least 1")
    if not points:
        return
    values = grid.values
    if jobs == 1 or len(points) < 2:
        with loss_surface.opened() as loss_at:
            for i, j in points:
                yield (i, j), loss_at(values[i], values[j])
        return
    # spawn: threads of torch do not survive a fork
    pool = ProcessPoolExecutor(
        min(jobs, len(points)), mp_context=get_context("spawn"), initializer=_start_worker,
        initargs=(loss_surface,),
    )  # fmt: skip
    others = active_children()
    try:
        yield from _in_pool(pool, values, points, jobs)
    except BrokenProcessPool:
        raise OSError(
            "a process that computed grid points ended; its own message, if any, is above (too "
            "little memory? use fewer jobs). Points that were done are kept"
        ) from None
    except BaseException:  # the caller stops: points under way are given up
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
        while left and len(running) < POINTS_AHEAD * jobs:
            i, j = left.pop()
            with block_sigint():
                running[pool.submit(_loss_at, values[i], values[j])] = i, j
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            yield running.pop(future), future.result()


_worker_resources = ExitStack()  # of a worker process, for as long as it lives
_worker_loss: LossAt | None = None


def _start_worker(loss_surface: LossSurface) -> None:
    """Load the model once in a new worker process."""
    global _worker_loss
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    _worker_loss = _worker_resources.enter_context(loss_surface.opened())


def _loss_at(alpha: float, beta: float) -> float:
    assert _worker_loss is not None
    return _worker_loss(alpha, beta)


def _exit_with_parent() -> None:
    """End the worker when its parent is gone, which a killed parent cannot ask for."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
