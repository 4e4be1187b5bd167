"""What crashed is noted, forgotten, and never half-written."""

import multiprocessing

import pytest

from bitcycle.study.results import (
    add_failure,
    failures_file,
    read_failures,
    write_failures,
)


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
