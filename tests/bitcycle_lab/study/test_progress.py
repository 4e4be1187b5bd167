"""What is said while a study runs: lines, a table on a terminal, the time that is left."""

import io
import json
from pathlib import Path

import pytest

from bitcycle_lab.study import progress
from bitcycle_lab.study.engines.base import run_directory
from bitcycle_lab.study.progress import (
    Lines,
    Live,
    RunProgress,
    StepSeconds,
    Watcher,
    failures_text,
    make_watcher,
    read_progress,
    seconds_left,
    status_text,
)
from bitcycle_lab.study.results import add_failure, read_study
from tests.bitcycle_lab.study.made_up import result_of, write_run
from tests.bitcycle_lab.study.small_studies import tiny_study


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


def test_the_beginning_and_every_end_of_a_run_is_a_line_with_its_place(said, runs):
    watcher, lines = said
    _, [first, second] = runs
    for part in ("4 runs", "1 done", "1 failed", "1 to resume", "1 to start", "2 at a time"):
        assert part in lines[0]
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


def test_now_and_then_the_runs_at_work_are_shown(said, runs, monkeypatch):
    watcher, lines = said
    watcher.update(runs[1][:1])
    assert len(lines) == 1
    monkeypatch.setattr(progress.time, "monotonic", lambda: 1e12)
    watcher.update(runs[1][:1])
    watcher.update(runs[1][:1])
    # of this run 2 steps of 3 s are left; the other's 4 take the mean of 3 s and seed 0's 1.5 s / 4
    assert lines[1:] == [
        "[2/4] 1 run at work, left 0:07",
        "    8 seed 1  step 2/4  bits fp32  accuracy 50.00",
    ]


def test_quiet_prints_the_runs_that_have_ended_and_nothing_else(runs, capsys):
    before, todo = runs
    with make_watcher("quiet") as watcher:
        watcher.begin(before, todo, num_jobs=2)
        watcher.update(todo[:1])
        watcher.busy(todo[0])
        assert capsys.readouterr().out == ""
        watcher.failed(todo[1], "ValueError: no")
    assert capsys.readouterr().out == "[3/4] 4 seed 1  FAILED: ValueError: no\n"


def test_lines_are_for_pipes(capsys):
    assert type(make_watcher("lines")) is Lines
    assert type(make_watcher("auto")) is Lines  # pytest's output is no terminal
    assert type(make_watcher("bar")) is Live
    Watcher().say("no")
    Lines().say("yes")
    assert capsys.readouterr().out == "yes\n"


rich_console = pytest.importorskip("rich.console")


def test_on_a_terminal_lines_stay_above_a_table_of_the_runs_at_work(tmp_path):
    terminal = rich_console.Console(file=io.StringIO(), width=100, force_terminal=True)
    study = tiny_study()
    runs = list(study.runs(str(tmp_path)))
    with Live(terminal) as watcher:
        watcher.begin(read_study(study, tmp_path), runs, num_jobs=2)
        watcher.update(runs[:1])
        watcher.say("[1/2] odd [text] stays")
    assert "[1/2] odd [text] stays" in terminal.file.getvalue()
    found = RunProgress(step=2, total_steps=4, bits="3/8", metric="accuracy", value=50.0)
    at_work = [(runs[0], found), (runs[1], RunProgress(total_steps=None))]
    console = rich_console.Console(file=io.StringIO(), width=100)
    console.print(watcher.table(at_work, 75.0))
    lines = console.file.getvalue().splitlines()
    whole, first, second = (" ".join(line.split()) for line in lines)
    assert whole.startswith("0/2 runs")
    assert whole.endswith("left 1:15")
    assert first.startswith("8 seed 0")
    assert first.endswith("step 2/4 bits 3/8 accuracy 50.00")
    assert second.endswith("step 0 bits -")


@pytest.fixture
def run(tmp_path):
    return next(iter(tiny_study().runs(str(tmp_path))))


def line(step, **changes):
    bits = {"weight": 3, "act": 3, "error": 8, "grad": 8}
    settings = {"step": step, "kind": "train", "accuracy": 50.0 + step, "bits": bits,
                "seconds": step / 2}  # fmt: skip
    return json.dumps({**settings, **changes})


def write(run, text):
    folder = run_directory(run.config)
    folder.path.mkdir(parents=True)
    folder.metrics_file.write_text(text, encoding="utf-8")


def test_the_last_whole_line_about_training_counts(run):
    evaluation = json.dumps({"step": 2, "kind": "eval", "accuracy": 99.0})
    write(run, f"{line(1)}\n{line(2)}\n{evaluation}\n{line(3)[:20]}")
    found = read_progress(run)
    assert found == RunProgress(
        step=2, total_steps=4, bits="3/8", metric="accuracy", value=52.0, seconds=1.0
    )
    assert str(found) == "step 2/4  bits 3/8  accuracy 52.00"
    assert found.seconds_per_step == 0.5


def test_an_unreadable_log_is_step_0(run):
    write(run, "[1]\nno\n")
    assert read_progress(run).step == 0


def test_the_time_left_is_that_of_all_steps_divided_by_the_jobs(tmp_path):
    study = tiny_study(seeds=(0, 1))  # four steps each
    first, second, third, fourth = study.runs(str(tmp_path))
    step_seconds = StepSeconds()
    assert seconds_left([first], [], step_seconds, 1) is None
    step_seconds.add(first, 1.0)
    step_seconds.add(second, 3.0)
    at_work = [(third, RunProgress(step=1, total_steps=4, seconds=2.0))]  # 2 s a step, 3 steps left
    assert seconds_left([fourth], at_work, step_seconds, 1) == 3 * 2.0 + 4 * 3.0
    assert seconds_left([fourth], at_work, step_seconds, 2) == 12.0  # no run is divided
    assert seconds_left([first, fourth], [], step_seconds, 1) == 4 * 1.0 + 4 * 3.0
    assert seconds_left([], [], step_seconds, 1) == 0.0


def test_a_row_per_method_and_a_line_for_what_is_not_simply_done(tmp_path):
    study = tiny_study(seeds=(0, 1))
    done, failed, started, _ = study.runs(str(tmp_path))
    write_run(done.config, result_of(done, Path("."), 91.5, 1e6))
    add_failure(tmp_path, failed.config.run_name, "ValueError: no")
    bits = {"weight": 3, "error": 8}
    line = {"step": 2, "kind": "train", "accuracy": 50.0, "seconds": 6.0, "bits": bits}
    write_run(started.config, None, [line])
    result = read_study(study, tmp_path)
    header, _, first, second, _, *rest = status_text(result).splitlines()
    assert header.split() == ["method", "done", "started", "failed", "missing", "metric", "mean"]
    assert first.split() == ["8", "1", "1", "0", "0", "accuracy", "91.50"]
    assert second.split() == ["4", "0", "0", "1", "1", "accuracy", "-"]
    assert rest == [
        f"1 of 4 runs done, below {tmp_path}",
        "interrupted, resumes from its checkpoint: 8 seed 1: step 2/4  bits 3/8  accuracy 50.00",
        "failed: 4 seed 0: ValueError: no",
        "1 run failed; --retry-failed tries again",
    ]
    assert failures_text(result).splitlines() == rest[-2:]
    with run_directory(started.config).locked():
        assert "\nat work: 8 seed 1: step 2/4" in status_text(result)
