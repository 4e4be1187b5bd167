"""Runs of no study."""

from dataclasses import replace

import pytest

from bitcycle.report.page.runs import collect_runs, find_runs

from .made_up import config, result_of, write_folder


def write(folder, made, value=90.0):
    result = None if value is None else result_of(made, value, 1000)
    return write_folder(folder / made.run_name, made, result)


def test_seeds_of_one_configuration_are_one_method(tmp_path):
    for seed in (1, 0):
        write(tmp_path, config("a", seed=seed), 90.0 + seed)
    write(tmp_path, config("b", 4, seed=0), None)
    result = collect_runs(find_runs(tmp_path))
    assert [method.method.label for method in result.methods] == ["a", "b"]
    assert result.methods[0].values == {0: 90.0, 1: 91.0}
    assert result.methods[1].runs[0].state == "started"
    assert result.study.groups == ("digits_mlp on digits",)
    assert result.study.name == tmp_path.name


def test_equal_names_are_told_apart(tmp_path):
    write(tmp_path / "x", config("a"))
    write(tmp_path / "y", config("a"))
    write(tmp_path / "y", config("a", 4, seed=1))
    result = collect_runs(find_runs(tmp_path))
    labels = [method.method.label for method in result.methods]
    assert len(set(labels)) == 3
    assert [label.split(",")[0] for label in labels] == ["a (x", "a (y", "a (y"]


def test_equal_names_in_folders_of_equal_names_too(tmp_path):
    write(tmp_path / "1" / "x", config("a"))
    write(tmp_path / "2" / "x", config("a"))
    labels = [m.method.label for m in collect_runs(find_runs(tmp_path)).methods]
    assert len(set(labels)) == 2


def test_a_single_run_is_found_by_its_folder(tmp_path):
    folder = write(tmp_path, config("a"))
    assert find_runs(folder) == [folder]
    assert collect_runs([folder]).study.name == "a-seed0"


def test_a_damaged_result_is_a_failed_run_and_a_damaged_configuration_is_named(tmp_path):
    broken = write(tmp_path, config("a"))
    (broken / "result.json").write_text("{")
    unknown = write(tmp_path, replace(config("b")))
    (unknown / "config.yaml").write_text("nmae: b\n")
    result = collect_runs(find_runs(tmp_path))
    [method] = result.methods
    assert method.runs[0].state == "failed"
    assert "damaged" in method.runs[0].error
    assert "b-seed0 is left out" in result.study.notes[0]


def test_a_folder_without_runs_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="there is no run in"):
        find_runs(tmp_path)
    (tmp_path / "config.yaml").write_text("nmae: b\n")
    with pytest.raises(ValueError, match="no run to report.*nmae"):
        collect_runs([tmp_path])
