"""Points from one process or several are the same."""

import os
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import active_children

import pytest

from bitcycle.landscape import Grid
from bitcycle.landscape.points import compute_points

GRID = Grid(num=3)


@dataclass(frozen=True)
class Toy:
    """Ten alpha plus beta after some seconds, or an early death."""

    seconds: float = 0.0
    quick: float | None = None  # the alpha that takes no time
    dies_at: float | None = None

    @contextmanager
    def opened(self):
        def loss_at(alpha, beta):
            time.sleep(0.0 if alpha == self.quick else self.seconds)
            if alpha == self.dies_at:
                os._exit(3)
            return 10 * alpha + beta

        yield loss_at


EXPECTED = {(i, j): 10.0 * (i - 1) + (j - 1) for i in range(3) for j in range(3)}


def test_one_process_computes_what_is_asked_for_in_that_order():
    points = [(2, 0), (0, 1)]
    assert list(compute_points(Toy(), GRID, points)) == [((2, 0), 9.0), ((0, 1), -10.0)]


def test_nothing_to_do_opens_nothing_and_no_process_is_an_error():
    assert list(compute_points(None, GRID, [], jobs=4)) == []
    with pytest.raises(ValueError, match=r"jobs \(0\)"):
        next(compute_points(Toy(), GRID, GRID.points, jobs=0))


@pytest.mark.slow
def test_also_from_another_thread_than_the_main_one():
    found = {}
    thread = threading.Thread(
        target=lambda: found.update(compute_points(Toy(), GRID, GRID.points, jobs=2))
    )
    thread.start()
    thread.join()
    assert found == EXPECTED


@pytest.mark.slow
def test_a_process_that_dies_is_an_error_and_not_a_wait():
    with pytest.raises(OSError, match="a process that computed grid points ended"):
        list(compute_points(Toy(dies_at=1.0), GRID, GRID.points, jobs=2))


@pytest.mark.slow
def test_a_caller_that_stops_early_leaves_no_process_behind():
    """The first point is quick, the others would take a minute each."""
    before = set(active_children())
    points = compute_points(Toy(seconds=60.0, quick=-1.0), GRID, GRID.points[2:], jobs=2)
    start = time.monotonic()
    assert next(points) == ((0, 2), -9.0)
    points.close()
    assert time.monotonic() - start < 50
    assert set(active_children()) == before
