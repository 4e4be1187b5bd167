"""The result of a study in one sentence."""

import math

import pytest

from bitcycle.study.headline import headline
from bitcycle.tasks import DataConfig, ModelConfig
from bitcycle.train.config import PrecisionConfig
from tests.study.made_up import method, study_result

BASE = {0: 90.0, 1: 91.0, 2: 92.0}
BETTER = {0: 91.9, 1: 93.0, 2: 94.1}  # 1.9 2.0 2.1: +- 4.3027 * 0.1 / sqrt(3) = 0.2484
WORSE = {0: 88.1, 1: 89.0, 2: 89.9}


def two(values, **changes):
    return study_result(
        [(method("static 8/8", 8), BASE, 200.0), (method("CPT", "CR:3-8:8"), values, 126.0)],
        baseline="static 8/8",
        **changes,
    )


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        # differences 1 2 3, hand-computed in test_statistics
        (
            {0: 91.0, 1: 93.0, 2: 95.0},
            ["+2.0 points", "-0.5 to 4.5, n = 3): cannot tell: needs about 4 seeds for 1 point"],
        ),
        # differences 0 0.1 -0.1: +- 0.2484
        ({0: 90.0, 1: 91.1, 2: 91.9}, ["-0.25 to 0.25, n = 3): no different within 1 point"]),
        (BETTER, ["+2.00 points", "1.75 to 2.25, n = 3", "better, beyond noise"]),
        (WORSE, ["-2.00 points", "-2.25 to -1.75", "worse, beyond noise"]),
        (
            {0: 91.0, 1: 92.0, 2: 93.0},
            ["+1.00 points", "no interval", "cannot tell: the same in every seed"],
        ),
        (BASE, ["0.00 points", "(n = 3, no interval): equal in every seed"]),
        (
            {0: 91.0, 1: None},
            [
                "n = 1, no interval): cannot tell: needs at least 3 seeds",
                "2 of 6 runs",
                "1 of them f",
            ],
        ),
        ({0: 91.0, 1: math.nan}, ["nan points", "cannot tell: a value is not finite"]),
    ],
)
def test_one_method_is_said_with_its_numbers(values, parts):
    text = headline(two(values))
    assert text.startswith("CPT against static 8/8: 63 % of the cost, accuracy ")
    assert [part for part in parts if part not in text] == []


def test_before_there_is_a_pair_there_is_no_answer():
    entries = [(method("a", 8), {}, 1.0), (method("b", 4), {}, 1.0)]
    assert headline(study_result(entries, baseline="a")).startswith("No run is done yet; 6 of 6")
    assert headline(two({})).startswith("Nothing to compare yet; 3 of 6 runs")


def test_several_are_counted_and_methods_whose_bits_change_are_the_question():
    entries = [
        (method("static", 8), BASE, 200.0),
        (method("better", "CR:3-8:8"), BETTER, 126.0),
        (method("worse", "CR:2-8:8"), WORSE, 50.0),
        (method("same", "CR:4-8:8"), {0: 91.0, 1: 90.0, 2: 92.1}, 100.0),
        (method("single", "CR:5-8:8"), {0: 91.0}, 40.0),
    ]
    # differences 1 -1 0.1 of "same": deviation 1.002, mean 0.03, so half a width of 0.97 decides
    counts = (
        "1 better, 1 worse; cannot tell for 2: needs about 7 seeds for 1 point (1 of 2), "
        "needs at least 3 seeds, one seed has no spread (1 of 2)"
    )
    text = headline(study_result(entries, baseline="static"))
    assert text.startswith(f"Of 4 methods against static: {counts}; 20 % to 63 % of the cost")
    entries.append((method("static 6", 6), {0: 91.0, 1: 90.0, 2: 92.1}, 90.0))
    text = headline(study_result(entries, baseline="static"))
    assert text.startswith("Of 4 methods whose bits change against static: 1 better")
    alone = headline(study_result([entries[0], entries[-1], entries[1]], baseline="static"))
    assert alone.startswith("better against static: ")


def test_when_no_method_can_be_told_from_the_baseline_that_is_the_headline():
    entries = [
        (method("static", 8), BASE, 200.0),
        (method("a", "CR:3-8:8"), {0: 91.0, 1: 93.0, 2: 95.0}, 100.0),  # mean 2, deviation 1
        (method("b", "CR:4-8:8"), {0: 90.0, 1: 93.0, 2: 96.0}, 100.0),  # mean 2, deviation 2
    ]
    text = headline(study_result(entries, baseline="static"))
    assert text.startswith(
        "Of 2 methods against static: cannot tell: needs about 4 to 7 seeds for 1 point"
    )
    assert "no different" not in text


def test_more_seeds_than_the_most_are_not_a_number():
    entries = [
        (method("static", 8), BASE, 200.0),
        (method("a", "CR:3-8:8"), {0: 91.0, 1: 93.0, 2: 95.0}, 100.0),
        (method("b", "CR:4-8:8"), {0: 290.0, 1: -109.0, 2: 92.0}, 100.0),  # deviation 200, mean 0
    ]
    text = headline(study_result(entries, baseline="static"))
    assert "cannot tell: needs about 4 to more than 10,000 seeds for 1 point" in text
    text = headline(study_result([entries[0], entries[2]], baseline="static"))
    assert "cannot tell: needs more than 10,000 seeds for 1 point" in text


def test_a_baseline_of_0_has_no_margin_to_count_seeds_for():
    changes = {
        "task": "language",
        "model": ModelConfig(name="lstm_lm"),
        "data": DataConfig(name="ptb", batch_size=4),
    }
    entries = [
        (method("static", 8, changes=changes), dict.fromkeys(range(3), 0.0), 1.0),
        (method("CPT", "CR:3-8:8", changes=changes), {0: 8.0, 1: 1.0, 2: -6.0}, 1.0),
    ]
    text = headline(study_result(entries, baseline="static"))
    assert text.endswith("cannot tell: the interval contains 0 and the study has no margin")


def test_what_matters_is_a_setting_of_the_study():
    values = {0: 91.0, 1: 93.0, 2: 95.0}  # 2.0 with an interval of -0.5 to 4.5
    assert headline(two(values, margin=5.0)).endswith("no different within 5 points")
    # half a width of 2: t(0.975, 3) / sqrt(4) = 1.59 is enough, 4.3027 / sqrt(3) = 2.48 is not
    text = headline(two(values, margin=4.0))
    assert text.endswith("cannot tell: needs about 4 seeds for 4 points")


def test_of_a_perplexity_one_percent_of_the_baseline_matters():
    changes = {
        "task": "language",
        "model": ModelConfig(name="lstm_lm"),
        "data": DataConfig(name="ptb", batch_size=4),
    }
    base, own = {0: 100.0, 1: 102.0}, {0: 100.1, 1: 102.0}
    entries = [
        (method("static", 8, changes=changes), base, 1.0),
        (method("CPT", "CR:3-8:8", changes=changes), own, 1.0),
    ]
    text = headline(study_result(entries, seeds=(0, 1), baseline="static"))
    assert text.endswith(
        "(95 % interval -0.59 to 0.69, n = 2): no different within 1 of perplexity"
    )


def test_next_to_float32_the_cost_is_not_the_question():
    float32 = method("float32", changes={"precision": PrecisionConfig()})
    stages = [
        (method(label, f"stages:{label}@0.5,fp32"), values, 100.0)
        for label, values in (("4", WORSE), ("6", BASE))
    ]
    text = headline(study_result([(float32, BASE, 200.0), *stages], baseline="float32"))
    assert text == "Of 2 methods against float32: 1 worse, 1 equal in every seed"


def test_a_suite_answers_with_the_relation():
    entries = [
        (method(f"s{i}", f"CR:3-8:{i + 1}", changes={"name": f"s{i}"}), {0: v}, 10.0 + i)
        for i, v in enumerate([1.0, 2.0, 4.0, 3.0, 5.0, 6.0, 7.0])
    ]
    text = headline(study_result(entries, seeds=(0,), kind="suite"))
    assert "over 7 schedules 0.96 (95 % interval " in text
    assert "more expensive ones end better; on the Pareto front: s0, s1, s2, s4, s5, s6" in text


def test_critical_periods_name_the_deficits_that_harm():
    entries = [
        (method("no deficit", 8), BASE, 1.0),
        (method("R = 9", "stages:3@9,8", at=9), {0: 89.9, 1: 91.0, 2: 92.1}, 1.0),
        (method("R = 99", "stages:3@99,8", at=99), WORSE, 1.0),
    ]
    text = headline(study_result(entries, kind="critical-periods", baseline="no deficit"))
    assert text.startswith("1 of 2 deficits end worse than no deficit beyond noise, 1 when correct")
    assert text.endswith("Worse: R = 99: -2.00 points (95 % interval -2.25 to -1.75, n = 3)")
    entries[1] = (entries[1][0], {0: 91.0}, 1.0)
    text = headline(study_result(entries, kind="critical-periods", baseline="no deficit"))
    assert text.startswith(
        "1 of 2 deficits end worse than no deficit beyond noise; cannot tell for 1"
    )
    entries[1] = (entries[1][0], {0: 89.9, 1: 91.0, 2: 92.1}, 1.0)
    alone = headline(study_result(entries, kind="critical-periods"))
    assert alone == "accuracy from 89.00 ± 0.90 (R = 99) to 91.0 ± 1.1 (R = 9)"
