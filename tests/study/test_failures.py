"""What crashed is noted, forgotten, and never half-written."""

import multiprocessing

import pytest

from bitcycle.study.failures import (
    add_failure,
    failures_file,
    read_failures,
    remove_failures,
    write_failures,
)


def test_nothing_has_failed_where_nothing_ran(tmp_path):
    assert read_failures(tmp_path / "no") == {}
    remove_failures(tmp_path / "no", ["a"])
    assert not (tmp_path / "no").exists()


def test_failures_are_added_and_removed_one_by_one(tmp_path):
    add_failure(tmp_path, "a-seed0", "ValueError: no")
    add_failure(tmp_path, "b-seed0", "ProcessDied")
    remove_failures(tmp_path, ["a-seed0", "unknown"])
    assert read_failures(tmp_path) == {"b-seed0": "ProcessDied"}


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


def test_a_damaged_file_says_what_to_do(tmp_path):
    write_failures(tmp_path, {})
    failures_file(tmp_path).write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"failures\.json is damaged.*delete it"):
        read_failures(tmp_path)
