"""The tables of what every study takes."""

import pytest

from bitcycle.recipes import recipe
from bitcycle.study.publish.reproduce import machine_sentence, reproduce_table
from bitcycle.study.publish.times import step_seconds, study_times, times_file
from bitcycle.study.subject import subject_of
from tests.study.publish.made import ALIKE, evidence_of, made

ROW = {"scale": "small", "description": "What?", "data": ["cora"], "runs": 6, "bitops": 2_000_000,
       "without_bitops": 0, "seconds": 7200.0, "without_time": 0}  # fmt: skip
DATA = {"studies": [{"name": "made-up", **ROW}, {"name": "other", **ROW, "without_time": 6},
                    {"name": "big", **ROW, "scale": "full"}],
        "machine": {"processor": "AMD EPYC", "cpu_capability": "AVX2", 
                    "torch": "2.13.0"}}  # fmt: skip


def test_a_study_that_was_run_has_its_measured_time_and_a_link():
    lines = reproduce_table(DATA, [evidence_of(made(ALIKE))], "small", folder="../results/")
    assert (
        "| [`made-up`](../results/made-up.md) | What? | cora | 6 | 480 BitOPs | 9 s | all |"
        in lines
    )
    assert "| `other` | What? | cora | 6 | 2.00 MBitOPs | unknown | no |" in lines
    assert "big" not in lines


def test_one_with_missing_runs_says_how_many_are_there():
    lines = reproduce_table(DATA, [evidence_of(made({0: 91.0}))], "small", folder="")
    assert "| about 2.0 h | 4 of 6 |" in lines


def test_one_with_more_seeds_says_so_and_has_the_time_of_its_own_runs():
    few = {**DATA, "studies": [{"name": "made-up", **ROW, "runs": 4}]}
    lines = reproduce_table(few, [evidence_of(made(ALIKE))], "small", folder="")
    assert "| 6 s | all (6 with more seeds) |" in lines


def test_the_machine_is_named():
    assert machine_sentence(DATA).startswith(
        "Times are of one core of AMD EPYC (AVX2), torch 2.13.0"
    )
    assert "the fastest run of each method" in machine_sentence(DATA)


def test_runs_and_bitops_come_from_the_definition():
    (row,) = study_times(["table4-small"], measure=lambda config: (0.5, config.steps))
    assert (row["runs"], row["data"], row["seconds"]) == (10, [], 0.5 * 240 * 10)
    assert row["bitops"] > 0


def test_the_file_has_the_order_of_the_list():
    rows = {name: {"name": name} for name in ("table2", "digits", "fig1")}
    found = times_file(rows)
    assert [row["name"] for row in found["studies"]] == ["digits", "fig1", "table2"]
    assert found["machine"]["torch"]


@pytest.mark.parametrize("name", ["digits-cpt-3-8-8", "digits-float32"])
def test_a_step_is_measured_without_data(name):
    assert step_seconds(subject_of(recipe(name))) > 0


def test_more_seeds_of_one_method_do_not_stand_for_another():
    few = {**DATA, "studies": [{"name": "made-up", **ROW, "runs": 4}]}
    lines = reproduce_table(few, [evidence_of(made({}))], "small", folder="")
    assert "| 2.00 MBitOPs | about 2.0 h | 2 of 4 |" in lines
