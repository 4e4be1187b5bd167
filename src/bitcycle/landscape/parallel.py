"""Grid points one after the other, or divided among processes; either way the same numbers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, ExitStack
from multiprocessing import active_children, get_context, parent_process
from typing import Protocol

from bitcycle.landscape.grid import Grid, Point
from bitcycle.train.signals import unheard_by_children

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
            with unheard_by_children():
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
