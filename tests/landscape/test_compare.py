"""Several runs on the same directions."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from bitcycle.landscape import Grid, RunSurface
from bitcycle.landscape.compare import PendingLandscape, choose_jobs, compare
from bitcycle.train import run
from bitcycle.train.signals import Interrupted
from tests.train.small import small

GRID = Grid(num=3)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    results = [run(small(folder, seed=seed, steps=4)) for seed in (0, 1)]
    return [RunSurface(directory=result.directory, samples=50) for result in results]


@pytest.mark.slow
def test_every_run_has_its_numbers_in_its_own_folder(runs, tmp_path):
    output = tmp_path / "numbers"
    output.mkdir()
    todo = compare(runs, GRID)
    assert [item.target for item in todo.items] == [
        Path(each.directory) / "landscape.json" for each in runs
    ]
    elsewhere = compare(runs, GRID, output=output)
    assert [item.target.name for item in elsewhere.items] == [
        "small-seed0.landscape.json", "small-seed1.landscape.json",
    ]  # fmt: skip
    assert (todo.num_points, todo.num_missing, todo.jobs) == (18, 16, 1)
    assert todo.seconds > 0
    seen = []
    found = elsewhere.run(seen.append)
    assert seen[-1] == 18
    assert seen == sorted(seen)
    assert [item.label for item in found.items] == ["small-seed0", "small-seed1"]
    assert found.share_directions
    assert found.items[0].losses != found.items[1].losses
    again = compare(runs, GRID, output=output)
    assert (again.num_missing, again.seconds) == (0, 0)
    assert again.run() == found


def test_another_surface_is_not_overwritten_unasked(runs, tmp_path):
    compare(runs[:1], GRID, output=tmp_path).run()
    other = replace(runs[0], precision="full")
    with pytest.raises(ValueError, match="another surface.*bits .*now fp32.*--replace"):
        compare([other], GRID, output=tmp_path)
    found = compare([other], GRID, output=tmp_path, replaces=True).run()
    assert found.items[0].precision == "fp32"


def test_a_signal_keeps_the_points_and_says_so(runs, tmp_path):
    todo = compare(runs, GRID, output=tmp_path)

    def interrupt(done):
        if done == 12:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match="12 of 18 points are kept") as stopped:
        todo.run(interrupt)
    assert stopped.value.exit_code == 128 + signal.SIGTERM
    assert compare(runs, GRID, output=tmp_path).num_missing == 6


def test_runs_of_one_name_get_their_folder_as_label(runs, tmp_path):
    other = run(small(tmp_path / "more", seed=0, steps=1))
    both = [runs[0], RunSurface(directory=other.directory, samples=50)]
    labels = [item.prepared.label for item in compare(both, GRID).items]
    assert labels == [each.directory for each in both]


def test_a_run_twice_and_no_process_are_errors(runs):
    with pytest.raises(ValueError, match="given twice"):
        compare([runs[0], replace(runs[0], directory=runs[0].directory + "/.")], GRID)
    with pytest.raises(ValueError, match=r"jobs \(0\)"):
        compare(runs, GRID, jobs=0)


def test_processes_are_used_where_they_are_worth_it(runs, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4)))
    (item,) = compare(runs[:1], GRID).items

    def with_times(seconds, threads):
        origin = {**item.prepared.origin, "threads": threads}
        return PendingLandscape(
            replace(item.prepared, point_seconds=seconds, origin=origin), item.target, 8
        )

    assert choose_jobs([with_times(0.1, 1)]) == 1
    assert choose_jobs([with_times(60.0, 1)]) == 4
    assert choose_jobs([with_times(60.0, 2)]) == 2
    assert choose_jobs([with_times(60.0, 8)]) == 1
