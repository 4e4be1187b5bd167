"""Points: the file that keeps them, and the processes that compute them."""

import math
import os
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import active_children

import pytest

from bitcycle.landscape import Grid
from bitcycle.landscape.points import PointFile, compute_points

# -- computing points -----------------------------------------------------------------------------


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


# -- the file -------------------------------------------------------------------------------------


ORIGIN = {"weights": "abc", "grid": 5, "center": math.nan}


def fill(path, points, origin=ORIGIN):
    store = PointFile(path, origin)
    with store.opened():
        for point, loss in points.items():
            store.add(point, loss)
    return store


def test_points_are_there_again_to_the_bit(tmp_path):
    points = {(0, 1): 1 / 3, (4, 4): math.inf, (2, 2): 1e-300}
    fill(tmp_path / "p.jsonl", points)
    store = PointFile(tmp_path / "p.jsonl", ORIGIN)
    assert store.read() == points
    with store.opened():
        assert store.losses == points
        store.add((3, 3), math.nan)
    assert math.isnan(store.read()[3, 3])
    assert len(store.read()) == 4


def test_seconds_add_up_over_interruptions_unless_a_point_does_not_tell(tmp_path):
    for place, seconds in enumerate((1.5, 0.25)):
        store = PointFile(tmp_path / "p.jsonl", ORIGIN)
        with store.opened():
            store.add((0, place), 0.5, seconds)
    assert store.seconds == 1.75
    with store.opened():
        assert store.seconds == 1.75
        store.add((1, 1), 0.5)
    assert store.seconds is None
    assert PointFile(tmp_path / "p.jsonl", ORIGIN).read() == dict.fromkeys(
        [(0, 0), (0, 1), (1, 1)], 0.5
    )


@pytest.mark.parametrize("tail", ["[1, 2", "[1, 2, 0.5, 0.", '{"a', "[3, 4]\n"])
def test_a_line_that_was_cut_short_does_not_count_and_does_no_harm(tmp_path, tail):
    path = tmp_path / "p.jsonl"
    fill(path, {(0, 0): 0.5})
    with path.open("a") as handle:
        handle.write(tail)
    fill(path, {(0, 1): 0.25})
    assert PointFile(path, ORIGIN).read() == {(0, 0): 0.5, (0, 1): 0.25}


def test_points_of_something_else_are_not_taken(tmp_path):
    fill(tmp_path / "p.jsonl", {(0, 0): 0.5})
    other = {**ORIGIN, "weights": "xyz"}
    assert PointFile(tmp_path / "p.jsonl", other).read() == {}
    fill(tmp_path / "p.jsonl", {(1, 1): 2.0}, other)
    assert PointFile(tmp_path / "p.jsonl", other).read() == {(1, 1): 2.0}
    assert PointFile(tmp_path / "p.jsonl", ORIGIN).read() == {}


def test_two_processes_do_not_write_one_file(tmp_path):
    store = PointFile(tmp_path / "p.jsonl", ORIGIN)
    with (
        store.opened(),
        pytest.raises(ValueError, match="being written by another process"),
        PointFile(tmp_path / "p.jsonl", ORIGIN).opened(),
    ):
        pass
    store.remove()
    store.remove()
    assert store.read() == {}
