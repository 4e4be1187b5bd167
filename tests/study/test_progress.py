"""What is said while a study runs."""

from pathlib import Path

import pytest

from bitcycle.study import progress
from bitcycle.study.attempt import log_file
from bitcycle.study.failures import add_failure
from bitcycle.study.live import Live
from bitcycle.study.progress import Lines, Watcher, make_watcher
from bitcycle.study.results import read_study
from tests.study.made_up import result_of, write_run
from tests.study.small_studies import tiny_study


@pytest.fixture
def runs(tmp_path):
    """Two methods, two seeds: one run is done, one failed before, one was interrupted."""
    study = tiny_study(seeds=(0, 1))
    done, failed, started, missing = study.runs(str(tmp_path))
    write_run(done.config, result_of(done, Path("."), 91.5, 1e6))
    add_failure(tmp_path, failed.config.run_name, "no")
    lines = [{"step": 2, "kind": "train", "accuracy": 50.0, "seconds": 6.0, "bits": {}}]
    write_run(started.config, None, lines)
    return read_study(study, tmp_path), [started, missing]


@pytest.fixture
def said(runs):
    lines = []
    watcher = Lines(lines.append)
    watcher.begin(*runs, num_jobs=2)
    return watcher, lines


def test_the_first_line_says_what_there_is(said):
    _, lines = said
    assert lines == [
        "tiny: 4 runs: 1 done, 1 failed before (--retry-failed tries them again), "
        "1 to go on with, 1 to begin; 2 at a time"
    ]


def test_every_end_of_a_run_is_a_line_with_its_place(said, runs):
    watcher, lines = said
    _, [first, second] = runs
    (Path(first.config.output) / first.config.run_name / "result.json").write_bytes(
        (next(Path(first.config.output).rglob("result.json"))).read_bytes()
    )
    watcher.done(first)
    watcher.failed(second, "ValueError: no")
    watcher.stopped(second, "stopped at step 3")
    assert lines[1:] == [
        "[3/4] 8 seed 1  accuracy 91.50  0:02",
        "[4/4] 4 seed 1  FAILED: ValueError: no",
        "4 seed 1: stopped at step 3",
    ]


def test_a_run_that_warned_names_its_log(said, runs):
    watcher, lines = said
    done = runs[0].methods[0].runs[0].run
    log_file(done.config).parent.mkdir(parents=True, exist_ok=True)
    log_file(done.config).write_text("warning", encoding="utf-8")
    watcher.done(done)
    assert lines[-1].endswith(f"warned: {log_file(done.config)}")


def test_a_run_of_another_process_is_said_once(said, runs):
    watcher, lines = said
    for _ in range(3):
        watcher.busy(runs[1][0])
    assert len(lines) == 2


def test_now_and_then_the_runs_at_work_are_shown(said, runs, monkeypatch):
    watcher, lines = said
    watcher.look(runs[1][:1])
    assert len(lines) == 1
    monkeypatch.setattr(progress.time, "monotonic", lambda: 1e12)
    watcher.look(runs[1][:1])
    watcher.look(runs[1][:1])
    # of this run 2 steps of 3 s are left; the other's 4 take the mean of 3 s and seed 0's 1.5 s / 4
    assert lines[1:] == [
        "[2/4] 1 run at work, left 0:07",
        "    8 seed 1  step 2/4  bits fp32  accuracy 50.00",
    ]


def test_quiet_is_quiet_and_lines_are_for_pipes(capsys):
    assert type(make_watcher("quiet")) is Watcher
    assert type(make_watcher("lines")) is Lines
    assert type(make_watcher("auto")) is Lines  # pytest's output is no terminal
    assert type(make_watcher("bar")) is Live
    Watcher().say("no")
    Lines().say("yes")
    assert capsys.readouterr().out == "yes\n"
