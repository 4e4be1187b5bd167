"""Run folders as a study, and their comparison."""

import json
import re
from dataclasses import replace

import pytest

from bitcycle.warnings import BitcycleWarning
from bitcycle_lab.study.comparison import (
    collect_runs,
    comparison_json,
    comparison_tables,
    find_runs,
    run_rows,
)
from bitcycle_lab.study.study import Method, Study, StudyRun
from bitcycle_lab.study.summary import summarize
from bitcycle_lab.tasks import DataConfig, ModelConfig
from tests.bitcycle_lab.study.made_up import config, method, result_of, write_run


def written(tmp_path, forward, seed, value, bitops=100.0, *, best=None, **changes):
    """A run folder; no value: it ended at step 120 of 240."""
    settings = config(forward, output=str(tmp_path), seed=seed, **changes)
    run = StudyRun(method=method("m", forward), config=settings)
    lines = [
        {"step": step, "kind": "train", "accuracy": 50.0 + step / 10, "loss": 1.0,
         "bits": {"weight": 3}, "bitops": bitops * step / 240, "seconds": step / 100}
        for step in (60, 120)
    ]  # fmt: skip
    result = None
    if value is not None:
        result = result_of(run, tmp_path, value, bitops)
        best = None if best is None else {"accuracy": best, "step": 60}
        result = replace(result, best=best, weights_sha256=f"{forward}-{seed}")
    return write_run(settings, result, lines)


def labels(result):
    return [each.method.label for each in result.methods]


# -- folders --------------------------------------------------------------------------------------


def test_seeds_of_one_configuration_are_one_method_wherever_they_are(tmp_path):
    folders = [
        written(tmp_path, 8, 1, 92.0),
        written(tmp_path, "CR:3-8:8", 0, None),
        written(tmp_path / "elsewhere", 8, 0, 90.0, name="renamed"),
    ]
    result = collect_runs(folders)
    assert labels(result) == ["run-8", "run-CR-3-8-8"]
    assert result.methods[0].values == {0: 90.0, 1: 92.0}
    assert result.methods[1].runs[0].state == "started"
    assert (result.study.groups, result.study.baseline) == (("",), None)
    assert result.study.name == f"{tmp_path.name}, elsewhere"


def test_runs_of_several_folders_are_named_after_them(tmp_path):
    folders = [written(tmp_path / name, 8, 0, 90.0) for name in "abcde"]
    assert collect_runs(folders[:1]).study.name == folders[0].name
    assert collect_runs(folders[:2]).study.name == "a, b"
    assert collect_runs(folders).study.name == "a, b, c, 2 more"


def test_a_run_that_repeats_a_configuration_and_a_seed_is_a_method_of_its_own(tmp_path):
    folders = [written(tmp_path / name, 8, seed, 90.0) for name in "ab" for seed in (0, 1)]
    result = collect_runs(folders)
    assert labels(result) == ["run-8 (a)", "run-8 (b)"]
    assert [len(each.runs) for each in result.methods] == [2, 2]
    renamed = written(tmp_path / "a", 8, 0, 90.0, name="other")
    assert labels(collect_runs([folders[0], renamed])) == ["run-8", "other"]


def test_equal_names_get_what_differs_their_folder_or_a_number(tmp_path):
    folders = [written(tmp_path / "a", 8, 0, 90.0, name="run"),
               written(tmp_path / "b", 4, 0, 90.0, name="run")]  # fmt: skip
    assert labels(collect_runs(folders)) == ["run (forward 8)", "run (forward 4)"]
    other = written(tmp_path / "c", 5, 0, 90.0, name="run", steps=9, accumulate=2)  # three settings
    assert labels(collect_runs([*folders, other])) == ["run (a)", "run (b)", "run (c)"]
    more = [*folders, written(tmp_path / "a", 5, 1, 90.0, name="run", steps=9, accumulate=2)]
    assert labels(collect_runs(more)) == ["run (1)", "run (2)", "run (3)"]
    taken = written(tmp_path / "c", 3, 0, 90.0, name="run (1)")
    assert len(set(labels(collect_runs([*more, taken])))) == 4


def test_labels_have_no_id_of_a_study(tmp_path):
    lengths = [config(8, name="run", steps=steps, output=str(tmp_path)) for steps in (10, 20)]
    study = Study(name="two", description="", seeds=(0,), methods=tuple(
        Method(label=str(each.steps), config=each) for each in lengths))  # fmt: skip
    folders = [write_run(run.config, None) for run in study.runs(str(tmp_path))]
    assert all(re.fullmatch(r"run-[0-9a-f]{10}-seed0", folder.name) for folder in folders)
    assert labels(collect_runs(folders)) == ["run (steps 10)", "run (steps 20)"]
    assert labels(collect_runs(folders[:1])) == ["run"]


def test_runs_of_other_data_are_a_group_of_their_own(tmp_path):
    words = config(8, output=str(tmp_path), name="words", task="language",
                   model=ModelConfig(name="lstm_lm"),
                   data=DataConfig(name="ptb", root="x"))  # fmt: skip
    result = collect_runs([written(tmp_path, 8, 0, 90.0), write_run(words, None)])
    assert len(result.study.groups) == 2


def test_the_same_folder_counts_once(tmp_path):
    folder = written(tmp_path, 8, 0, 90.0)
    assert collect_runs([folder, folder / "." / ""]).num_runs == 1


def test_a_folder_is_a_run_or_holds_runs(tmp_path):
    with pytest.raises(ValueError, match="there is no run in"):
        find_runs(tmp_path)
    folder = written(tmp_path, 8, 0, 90.0)
    assert find_runs(folder) == find_runs(tmp_path) == [folder]
    assert collect_runs([folder]).study.name == "run-8-seed0"


def test_a_damaged_result_is_a_failed_run_and_a_damaged_configuration_is_named(tmp_path):
    (written(tmp_path, 8, 0, 90.0) / "result.json").write_text("{")
    damaged = written(tmp_path, 4, 0, 90.0)
    (damaged / "config.yaml").write_text("nmae: b\n")
    with pytest.warns(BitcycleWarning, match=damaged.name):
        result = collect_runs(find_runs(tmp_path))
    [only] = result.methods
    assert only.runs[0].state == "failed"
    assert "damaged" in only.runs[0].error
    assert damaged.name in result.study.notes[0]
    with pytest.raises(ValueError, match="run-4-seed0"):
        collect_runs([damaged])


# -- comparison -----------------------------------------------------------------------------------


def three(tmp_path):
    folders = [
        written(tmp_path, 3, 0, None),
        written(tmp_path, 8, 0, 90.0, 200.0),
        written(tmp_path, 8, 1, 92.0, 200.0),
        written(tmp_path, "CR:3-8:8", 0, 91.0, best=93.0),
    ]
    return collect_runs(folders, with_baseline=True)


def test_the_first_configuration_with_a_finished_run_is_the_baseline(tmp_path):
    [group] = summarize(three(tmp_path))
    cut, static, cpt = group.methods
    assert group.baseline == "run-8"
    assert (cut.summary, cut.difference, cut.relative_cost) == (None, None, None)
    assert (static.summary.mean, static.difference, static.relative_cost) == (91.0, None, 1.0)
    assert (cpt.difference.mean, cpt.difference.n, cpt.relative_cost) == (1.0, 1, 0.5)  # seed 0


def test_the_tables_show_values_differences_runs_and_settings(tmp_path):
    values, differences, runs, settings = comparison_tables(three(tmp_path))
    assert [row[:2] for row in values.rows] == [
        ("run-3", "-"), ("run-8", "91.0 ± 1.4"), ("run-CR-3-8-8", "91.0"),
    ]  # fmt: skip
    assert differences.rows[-1][:3] == ("run-CR-3-8-8", "run-8", "+1.00")
    assert runs.headings == (
        "run", "seed", "steps", "final", "best", "at", "time", "weights", "state",
    )  # fmt: skip
    assert runs.rows == (
        ("run-3", "0", "120 of 240", "-", "-", "-", "1.2 s", "-", "not finished"),
        ("run-8", "0", "240", "90.00", "-", "FW8/BW8", "1.5 s", "8-0", "-"),
        ("run-8", "1", "240", "92.00", "-", "FW8/BW8", "1.5 s", "8-1", "-"),
        ("run-CR-3-8-8", "0", "240", "91.00", "93.00", "FW8/BW8", "1.5 s", "CR:3-8:8-0", "-"),
    )
    assert settings.headings == ("setting", "run-3", "run-8", "run-CR-3-8-8")
    assert settings.rows == (("precision.forward", "3", "8", "CR:3-8:8"),)


def test_one_configuration_has_neither_differences_nor_settings(tmp_path):
    alone = collect_runs([written(tmp_path, 8, 0, 90.0)], with_baseline=True)
    values, runs = comparison_tables(alone)
    assert (values.name, runs.name) == ("values", "runs")
    assert "Best:" not in runs.caption


def test_json_is_unrounded_and_plain(tmp_path):
    data = json.loads(json.dumps(comparison_json(three(tmp_path))))
    cut, static, cpt = data["methods"]
    assert static["std"] == 2**0.5
    assert (cpt["difference"], cut["mean"], cut["started"]) == (1.0, None, 1)
    assert [row["final"] for row in data["runs"]] == [None, 90.0, 92.0, 91.0]
    assert data["runs"][3]["best"] == 93.0
    assert data["settings"] == {"precision.forward": ["3", "8", "CR:3-8:8"]}


def test_an_unfinished_run_shows_what_it_has(tmp_path):
    [row] = run_rows(collect_runs([written(tmp_path, "CR:3-8:8", 0, None)]))
    assert (row["steps"], row["bitops"], row["seconds"]) == (120, 50.0, 1.2)
    [row] = run_rows(collect_runs([write_run(config(8, output=str(tmp_path)), None)]))
    assert (row["steps"], row["bitops"], row["seconds"]) == (0, None, None)
