"""Results of a study, read from the folders of its runs."""

import multiprocessing
import os
from pathlib import Path

import pytest

from bitcycle_lab.study.results import (
    add_failure,
    choose_options,
    failures_file,
    open_study,
    options_file,
    read_failures,
    read_options,
    read_study,
    write_failures,
    write_options,
)
from bitcycle_lab.study.runner import runs_to_train
from bitcycle_lab.study.study import StudyOptions
from tests.bitcycle_lab.study.made_up import result_of, write_run
from tests.bitcycle_lab.study.small_studies import tiny_study

# -- results --------------------------------------------------------------------------------------


@pytest.fixture
def study():
    return tiny_study(seeds=(0, 1))


def test_a_run_is_missing_started_failed_or_done(study, tmp_path):
    first, second, third, _ = study.runs(str(tmp_path))
    write_run(first.config, result_of(first, Path("."), 91.5, 1e6))
    write_run(second.config, None)
    add_failure(tmp_path, third.config.run_name, "ValueError: no")
    result = read_study(study, tmp_path)
    states = {s.config.run_name: s.state for row in result.methods for s in row.runs}
    assert list(states.values()) == ["done", "failed", "started", "missing"]
    assert [result.count(s) for s in ("done", "failed", "started", "missing")] == [1] * 4
    assert result.num_runs == 4
    assert result.methods[0].values == {0: 91.5}
    assert result.methods[0].bitops == 1e6
    assert result.methods[1].bitops is None
    assert result.methods[0].runs[1].error == "ValueError: no"


def test_a_result_counts_more_than_a_failure_that_was_noted(study, tmp_path):
    first, *_ = study.runs(str(tmp_path))
    write_run(first.config, result_of(first, Path("."), 91.5, 1e6))
    add_failure(tmp_path, first.config.run_name, "ValueError: no")
    state = read_study(study, tmp_path).methods[0].runs[0]
    assert (state.state, state.error) == ("done", None)


def test_a_damaged_result_is_a_failed_run_that_only_its_owner_can_try_again(study, tmp_path):
    first, *_ = study.runs(str(tmp_path))
    write_run(first.config, result_of(first, Path("."), 91.5, 1e6))
    file = tmp_path / first.config.run_name / "result.json"
    file.write_text(file.read_text(encoding="utf-8")[:50], encoding="utf-8")
    result = read_study(study, tmp_path)
    state = result.methods[0].runs[0]
    assert state.state == "failed"
    assert str(file) in state.error
    assert result.count("missing") == 3
    assert [s.state for s in runs_to_train(result, retry_failed=True)] == ["missing"] * 3
    file.unlink()
    assert read_study(study, tmp_path).methods[0].runs[0].state == "started"


# -- failed runs ----------------------------------------------------------------------------------


def _add(path, name):
    for number in range(20):
        add_failure(path, f"{name}-{number}", "x")


def test_two_processes_that_note_failures_lose_none(tmp_path):
    context = multiprocessing.get_context("fork")
    others = [context.Process(target=_add, args=(tmp_path, name)) for name in "ab"]
    for other in others:
        other.start()
    for other in others:
        other.join()
    assert len(read_failures(tmp_path)) == 40


def test_damaged_failures_say_what_to_do(tmp_path):
    write_failures(tmp_path, {})
    failures_file(tmp_path).write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"failures\.json"):
        read_failures(tmp_path)


# -- options of the last run ----------------------------------------------------------------------


OPTIONS = StudyOptions(overrides=("--steps", "9"), seeds=(4, 5), default_threads=3)
FILE = """
name: mine
base: {model: {name: digits_mlp}, steps: 5}
methods: {a: {}, b: {threads: 2}}
"""


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(FILE, encoding="utf-8")
    return str(path)


def settings(study):
    return [(method.config.steps, method.config.threads) for method in study.methods]


def test_options_come_back_as_they_were(tmp_path):
    assert read_options(tmp_path, "mine") is None
    write_options(tmp_path, "mine", OPTIONS)
    assert read_options(tmp_path, "mine") == OPTIONS
    write_options(tmp_path, "mine", StudyOptions())
    assert read_options(tmp_path, "mine") == StudyOptions()


def test_a_study_is_opened_as_it_was_last_run(mine, tmp_path):
    assert settings(open_study(mine, tmp_path)) == [(5, None), (5, 2)]
    write_options(tmp_path, "mine", OPTIONS)
    study = open_study(mine, tmp_path)
    assert (settings(study), study.seeds) == ([(9, 3), (9, 2)], (4, 5))


def test_options_that_are_given_replace_all_but_the_threads(mine, tmp_path):
    write_options(tmp_path, "mine", OPTIONS)
    study = open_study(mine, tmp_path, StudyOptions(seeds=(1,)))
    assert (settings(study), study.seeds) == ([(5, 3), (5, 2)], (1,))


def test_threads_are_the_cores_divided_by_the_jobs_until_a_study_has_begun(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))

    def chosen(num_jobs, engine="local"):
        options = choose_options("mine", tmp_path, StudyOptions(), num_jobs=num_jobs, engine=engine)
        return options.default_threads

    assert [chosen(jobs) for jobs in (None, 1, 3, 8, 20)] == [8, 8, 2, 1, 1]
    assert chosen(None, "ray") == 1
    write_options(tmp_path, "mine", OPTIONS)
    assert chosen(8) == 3


def test_damaged_options_say_what_to_do(tmp_path):
    write_options(tmp_path, "mine", OPTIONS)
    options_file(tmp_path, "mine").write_text("[]", encoding="utf-8")
    with pytest.raises(ValueError, match="mine"):
        read_options(tmp_path, "mine")
