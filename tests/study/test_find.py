"""Studies by name and by file."""

import pytest

from bitcycle.study.find import find_study


def test_a_name_finds_what_comes_with_the_package():
    assert find_study("demo").name == "demo"


def test_a_path_finds_a_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("{name: mine, methods: {a: digits-float32}}", encoding="utf-8")
    assert find_study(str(path)).name == "mine"


def test_a_file_that_is_not_there_and_an_unknown_name_are_errors():
    with pytest.raises(ValueError, match=r"there is no file no\.yaml"):
        find_study("no.yaml")
    with pytest.raises(ValueError, match="unknown study 'dmo'.*did you mean 'demo'"):
        find_study("dmo")
