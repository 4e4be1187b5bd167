"""What a study was run with is remembered, so that its runs are found again."""

import os

import pytest

from bitcycle.study.results import (
    choose_options,
    open_study,
    options_file,
    read_options,
    write_options,
)
from bitcycle.study.study import StudyOptions

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


def test_a_damaged_file_says_what_to_do(tmp_path):
    write_options(tmp_path, "mine", OPTIONS)
    options_file(tmp_path, "mine").write_text("[]", encoding="utf-8")
    with pytest.raises(ValueError, match="is damaged.*delete it"):
        read_options(tmp_path, "mine")
