"""Runs side by side: entries, differences, tables and data."""

import json
import math
from dataclasses import replace

import pytest
import torch

from bitcycle.analysis.compare import (
    compare_runs,
    comparison_json,
    comparison_tables,
    is_bit_equal,
    largest_difference,
)
from bitcycle.study.study import StudyRun
from bitcycle.train.checkpoint import Checkpoints
from tests.study.made_up import config, method, result_of, write_run


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
        result = replace(result, best=None if best is None else {"accuracy": best, "step": 60})
    return write_run(settings, result, lines)


def test_seeds_of_one_configuration_are_one_entry(tmp_path):
    folders = [
        written(tmp_path, 8, 1, 92.0, 200.0),
        written(tmp_path, "CR:3-8:8", 0, 91.0, best=93.0),
        written(tmp_path, 8, 0, 90.0, 200.0),
    ]
    static, cpt = compare_runs(folders).groups
    assert (static.name, static.seeds, static.num_unfinished) == ("run-8", (0, 1), 0)
    assert (static.final.mean, static.final.n, static.best) == (91.0, 2, None)
    assert (cpt.final.mean, cpt.best.mean, cpt.metric) == (91.0, 93.0, "accuracy")
    assert (static.relative_cost, cpt.relative_cost) == (1.0, 0.5)
    assert static.difference is None
    assert (cpt.difference.mean, cpt.difference.n) == (1.0, 1)  # seed 0 only


def test_the_folder_and_what_is_logged_do_not_make_a_configuration(tmp_path):
    other = tmp_path / "elsewhere"
    folders = [
        written(tmp_path, 8, 0, 90.0),
        written(other, 8, 1, 92.0, name="renamed"),
    ]
    [entry] = compare_runs(folders).groups
    assert entry.seeds == (0, 1)


def test_an_unfinished_run_shows_what_it_has(tmp_path):
    folders = [written(tmp_path, 8, 0, 90.0, 200.0), written(tmp_path, "CR:3-8:8", 0, None)]
    _, cut = compare_runs(folders).groups
    [run] = cut.runs
    assert (run.step, run.bitops, run.seconds, run.result) == (120, 50.0, 1.2, None)
    assert (cut.final, cut.difference, cut.num_unfinished) == (None, None, 1)
    assert cut.relative_cost == 0.25


def test_a_run_without_a_line_is_at_step_zero(tmp_path):
    folder = write_run(config(8, output=str(tmp_path)), None)
    [entry] = compare_runs([folder]).groups
    assert (entry.runs[0].step, entry.runs[0].bitops, entry.runs[0].seconds) == (0, None, None)


def test_the_same_folder_counts_once(tmp_path):
    folder = written(tmp_path, 8, 0, 90.0)
    assert compare_runs([folder, folder / "." / ""]).groups[0].seeds == (0,)


def with_weights(folder, step, **tensors):
    model = {name: torch.tensor(values) for name, values in tensors.items()}
    Checkpoints(folder / "checkpoints").save(step, {"model": model, "run": {}})
    return folder


def test_a_repeated_run_is_a_row_of_its_own_and_its_weights_are_compared(tmp_path):
    folders = [
        with_weights(written(tmp_path / "a", 8, 0, 90.0), 240, w=[1.0, 2.0], b=[0.5]),
        with_weights(written(tmp_path / "a", 8, 1, 91.0), 240, w=[3.0, 2.0], b=[0.5]),
        with_weights(written(tmp_path / "b", 8, 0, 90.0), 240, w=[1.0, 2.0], b=[0.5]),
        with_weights(written(tmp_path / "b", 8, 1, 91.5), 240, w=[3.0, 2.25], b=[-0.5]),
    ]
    compared = compare_runs(folders)
    assert [(group.name, group.seeds) for group in compared.groups] == [
        ("run-8 (a)", (0, 1)), ("run-8 (b)", (0, 1)),
    ]  # fmt: skip
    assert compared.groups[1].difference.mean == 0.25
    weights = comparison_tables(compared)[2]
    assert weights.rows == (
        ("run-8 (b)", "run-8 (a)", "0", "240", "equal, bit for bit (2 tensors)"),
        ("run-8 (b)", "run-8 (a)", "1", "240", "differ in 2 of 2 tensors, most in b: by 1"),
    )
    stored = json.loads(json.dumps(comparison_json(compared)))["weights"]
    assert [each["is_equal"] for each in stored] == [True, False]
    assert stored[1]["largest"] == {"w": 0.25, "b": 1.0}


def test_two_runs_of_one_seed_and_two_settings_have_their_weights_compared(tmp_path):
    one = with_weights(written(tmp_path, 8, 0, 90.0), 240, w=[1.0, 0.0])
    other = with_weights(written(tmp_path, 4, 0, 90.0), 240, w=[1.0, -0.0])
    [compared] = compare_runs([one, other]).weights
    assert str(compared) == "differ in 1 of 1 tensors, most in w: by 0"  # the sign of a zero
    third = with_weights(written(tmp_path, 3, 0, 90.0), 240, w=[1.0, 0.0])
    assert compare_runs([one, other, third]).weights == ()
    seed = with_weights(written(tmp_path, 4, 1, 90.0), 240, w=[1.0, 0.0])
    assert compare_runs([one, seed]).weights == ()


def test_weights_that_cannot_be_compared_say_why(tmp_path):
    runs = {name: written(tmp_path / name, 8, 0, 90.0) for name in ("a", "b", "c", "d")}
    with_weights(runs["a"], 240, w=[1.0])
    with_weights(runs["b"], 120, w=[1.0])
    with_weights(runs["c"], 240, w=[1.0, 2.0])
    assert [str(each) for each in compare_runs(runs.values()).weights] == [
        "not compared: checkpoints of steps 120 and 240",
        "not compared: the models have other tensors",
        "not compared: run-8 (d) has no checkpoint",
    ]


def test_equal_bits_are_equal_even_if_they_are_nan():
    x, nan = torch.tensor([1.0]), torch.tensor([float("nan")])
    assert is_bit_equal(nan, nan.clone())
    assert not is_bit_equal(x, nan)
    assert not is_bit_equal(x, x.double())
    assert is_bit_equal(torch.tensor(3), torch.tensor(3))


def test_equal_names_are_told_apart(tmp_path):
    folders = [
        written(tmp_path / "a", 8, 0, 90.0, name="run"),
        written(tmp_path / "b", 4, 0, 90.0, name="run"),
    ]
    assert [e.name for e in compare_runs(folders).groups] == ["run (a)", "run (b)"]
    more = [*folders, written(tmp_path / "a", 5, 1, 90.0, name="run")]
    assert [e.name for e in compare_runs(more).groups] == ["run (1)", "run (2)", "run (3)"]


def test_what_is_no_run_is_an_error_that_says_where_runs_are(tmp_path):
    written(tmp_path, 8, 0, 90.0)
    with pytest.raises(ValueError, match=r"no config.yaml; it holds 1 runs: give .*/\*"):
        compare_runs([tmp_path])
    with pytest.raises(ValueError, match="is not a run: it has no config.yaml$"):
        compare_runs([tmp_path / "nothing"])
    with pytest.raises(ValueError, match="nothing to compare"):
        compare_runs([])


def three(tmp_path):
    folders = [
        written(tmp_path, 8, 0, 90.0, 200.0),
        written(tmp_path, 8, 1, 92.0, 200.0),
        written(tmp_path, "CR:3-8:8", 0, 91.0, best=93.0),
        written(tmp_path, 3, 0, None),
    ]
    return compare_runs(folders)


def test_the_tables_show_results_differences_and_settings(tmp_path):
    runs, differences, settings = comparison_tables(three(tmp_path))
    assert runs.title == "Runs: accuracy, %"
    assert runs.headings == (
        "run", "seeds", "steps", "final", "best", "at", "cost", "time", "state",
    )  # fmt: skip
    assert runs.rows == (
        ("run-8", "0, 1", "240", "91.0 ± 1.4", "-", "FW8/BW8", "1.00", "1.5 s", "-"),
        ("run-CR-3-8-8", "0", "240", "91.00", "93.00", "FW8/BW8", "0.500", "1.5 s", "-"),
        ("run-3", "0", "120 of 240", "-", "-", "-", "0.250", "1.2 s", "not finished"),
    )
    assert differences.rows == (("run-CR-3-8-8", "+1.00", "1", "-"),)
    assert settings.headings == ("setting", "run-8", "run-CR-3-8-8", "run-3")
    assert settings.rows == (("precision.forward", "8", "CR:3-8:8", "3"),)


def test_one_configuration_has_neither_differences_nor_settings(tmp_path):
    alone = compare_runs([written(tmp_path, 8, 0, 90.0), written(tmp_path, 8, 1, None)])
    [runs] = comparison_tables(alone)
    assert runs.rows[0][-1] == "1 of 2 not finished"
    assert runs.rows[0][2] == "120 to 240 of 240"


def test_json_is_unrounded_and_plain(tmp_path):
    data = json.loads(json.dumps(comparison_json(three(tmp_path))))
    static, cpt, cut = data["runs"]
    assert static["values"] == [90.0, 92.0]
    assert static["final"]["std"] == 2**0.5
    assert (cpt["best"]["mean"], cpt["difference"]["mean"]) == (93.0, 1.0)
    assert (cut["values"], cut["final"], cut["state"]) == ([None], None, "not finished")
    assert data["differing"] == {"precision.forward": ["8", "CR:3-8:8", "3"]}


def test_thelargest_difference_of_diverged_and_of_empty_tensors_is_no_error():
    assert math.isnan(largest_difference(torch.tensor([math.nan]), torch.tensor([1.0])))
    assert largest_difference(torch.empty(0), torch.empty(0, dtype=torch.float64)) == 0.0
