"""The file of points survives what kills a process."""

import math

import pytest

from bitcycle.landscape.points import PointFile

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


@pytest.mark.parametrize("tail", ["[1, 2", "[1, 2, 0.", "[1, 2, 0.5, 0.", "[", '{"a', "[3, 4]\n"])
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


def test_a_file_that_is_no_text_is_begun_anew(tmp_path):
    (tmp_path / "p.jsonl").write_bytes(b"\xff\x00\n\xfe")
    fill(tmp_path / "p.jsonl", {(0, 0): 0.5})
    assert PointFile(tmp_path / "p.jsonl", ORIGIN).read() == {(0, 0): 0.5}


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
