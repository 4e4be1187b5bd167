"""Rows, differences, costs, budgets of a study, and its answer in one sentence."""

import math

import pytest

from bitcycle.study.headline import headline
from bitcycle.study.summary import best_within, budgets, summarize
from bitcycle.train.config import PrecisionConfig
from tests.study.made_up import method, study_result

STATIC, CPT, LOW = "static 8/8", "CPT 3-8/8", "static 3/8"


def compared(**changes):
    """CPT misses seed 2 and has a failed seed 1; the third has not begun."""
    return study_result(
        [
            (method(STATIC, 8), {0: 90.0, 1: 91.0, 2: 92.0}, 200.0),
            (method(CPT, "CR:3-8:8"), {0: 92.0, 1: None}, 100.0),
            (method(LOW, 3), {}, 50.0),
        ],
        **{"baseline": STATIC, **changes},
    )


def three(**changes):
    return study_result(
        [
            (method(STATIC, 8), {0: 90.0, 1: 91.0, 2: 92.0}, 200.0),
            (method(CPT, "CR:3-8:8"), {0: 92.0, 1: 92.5, 2: 94.5}, 100.0),
            (method(LOW, 3), {0: 80.0, 1: 81.0, 2: 85.0}, 50.0),
        ],
        **{"baseline": STATIC, **changes},
    )


def rows_of(result):
    [group] = summarize(result)
    return {row.label: row for row in group.rows}


def test_differences_and_costs_are_to_the_baseline():
    rows = rows_of(three())
    assert rows[STATIC].difference is None
    assert rows[CPT].difference.mean == 2.0  # 2, 1.5, 2.5
    assert rows[CPT].difference.n == 3
    assert [rows[label].relative_cost for label in (STATIC, CPT, LOW)] == [1.0, 0.5, 0.25]
    assert [rows[label].is_on_front for label in (STATIC, CPT, LOW)] == [False, True, True]


def test_failed_and_missing_runs_leave_what_there_is():
    rows = rows_of(compared())
    assert rows[CPT].summary.n == rows[CPT].difference.n == 1
    assert rows[CPT].difference.mean == 2.0
    assert rows[CPT].difference.p is rows[CPT].summary.low is None
    low = rows[LOW]
    assert low.summary is low.difference is low.relative_cost is low.bitops is None
    assert not low.is_on_front
    assert [rows[CPT].method.count(s) for s in ("done", "failed", "missing")] == [1, 1, 1]


def test_groups_are_compared_within_themselves():
    result = study_result(
        [
            (method("a", 8, group="one"), {0: 1.0}, 10.0),
            (method("b", 4, group="one"), {0: 3.0}, 5.0),
            (method("a", 8, group="two", changes={"steps": 9}), {0: 10.0}, 100.0),
            (method("c", 5, group="three"), {0: 7.0}, 1.0),
        ],
        baseline="a",
    )
    one, two, three = summarize(result)
    assert one.rows[1].difference.mean == 2.0
    assert (two.baseline, [row.relative_cost for row in two.rows]) == ("a", [1.0])
    assert (three.baseline, three.rows[0].difference) == (None, None)


# -- equal BitOPs -----------------------------------------------------------------------------


def test_best_within_a_budget_is_the_best_mean_that_it_pays():
    [group] = summarize(three())
    assert best_within(group, 49.0) is None
    assert best_within(group, 50.0).label == LOW
    assert best_within(group, 99.9).label == LOW
    assert best_within(group, 100.0).label == CPT
    assert best_within(group, 1e9).label == CPT


def test_means_that_differ_by_rounding_are_equal():
    # 1783 of 1800 right in both
    dear = [99.1666666667, 98.6111111111, 98.8888888889, 98.8888888889, 99.7222222222]
    cheap = [98.8888888889, 98.6111111111, 99.7222222222, 99.4444444444, 98.6111111111]
    entries = [
        (method("a", 8), dict(enumerate(dear)), 567.0),
        (method("b", 4), dict(enumerate(cheap)), 359.0),
    ]
    [group] = summarize(study_result(entries, seeds=(0, 1, 2, 3, 4)))
    assert best_within(group, 600.0).label == "b"
    assert [row.is_on_front for row in group.rows] == [False, True]


def test_budgets_are_the_costs_of_the_methods_each_once():
    [group] = summarize(three())
    assert [(b.bitops, b.best.label) for b in budgets(group)] == [
        (50.0, LOW), (100.0, CPT), (200.0, CPT),
    ]  # fmt: skip
    [none] = summarize(study_result([(method("a", 8), {}, 1.0)]))
    assert budgets(none) == ()


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
        ({0: 91.0, 1: 93.0, 2: 95.0}, ["+2.0 points", "-0.5 to 4.5, n = 3", "no difference"]),
        (BETTER, ["+2.00 points", "1.75 to 2.25, n = 3", "better, beyond noise"]),
        (WORSE, ["-2.00 points", "-2.25 to -1.75", "worse, beyond noise"]),
        ({0: 91.0, 1: 92.0, 2: 93.0}, ["+1.00 points", "no interval", "noise is not known"]),
        ({0: 91.0, 1: None}, ["n = 1", "one seed cannot tell", "2 of 6 runs", "1 of them failed"]),
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
    counts = "1 better, 1 worse, 1 no different beyond noise, 1 without an interval"
    text = headline(study_result(entries, baseline="static"))
    assert text.startswith(f"Of 4 methods against static: {counts}; 20 % to 63 % of the cost")
    entries.append((method("static 6", 6), {0: 91.0, 1: 90.0, 2: 92.1}, 90.0))
    text = headline(study_result(entries, baseline="static"))
    assert text.startswith("Of 4 methods whose bits change against static: 1 better")
    alone = headline(study_result([entries[0], entries[-1], entries[1]], baseline="static"))
    assert alone.startswith("better against static: ")


def test_next_to_float32_the_cost_is_not_the_question():
    float32 = method("float32", changes={"precision": PrecisionConfig()})
    stages = [
        (method(label, f"stages:{label}@0.5,fp32"), values, 100.0)
        for label, values in (("4", WORSE), ("6", BASE))
    ]
    text = headline(study_result([(float32, BASE, 200.0), *stages], baseline="float32"))
    assert text == "Of 2 methods against float32: 1 worse, 1 without an interval"


def test_a_suite_answers_with_the_relation():
    entries = [
        (method(f"s{i}", f"CR:3-8:{i + 1}", changes={"name": f"s{i}"}), {0: v}, 10.0 + i)
        for i, v in enumerate([1.0, 2.0, 4.0, 3.0, 5.0, 6.0, 7.0])
    ]
    text = headline(study_result(entries, seeds=(0,), kind="suite"))
    assert "over 7 schedules 0.96 (95 % interval " in text
    assert "dearer ones end better; on the Pareto front: s0, s1, s2, s4, s5, s6" in text


def test_critical_periods_name_the_deficits_that_harm():
    entries = [
        (method("no deficit", 8), BASE, 1.0),
        (method("R = 9", "stages:3@9,8", at=9), {0: 89.9, 1: 91.0, 2: 92.1}, 1.0),
        (method("R = 99", "stages:3@99,8", at=99), WORSE, 1.0),
    ]
    text = headline(study_result(entries, kind="critical-periods", baseline="no deficit"))
    assert text.startswith("1 of 2 deficits end worse than no deficit beyond noise, 1 when correct")
    assert text.endswith("Worse: R = 99: -2.00 points (95 % interval -2.25 to -1.75, n = 3)")
    alone = headline(study_result(entries, kind="critical-periods"))
    assert alone == "accuracy from 89.00 ± 0.90 (R = 99) to 91.0 ± 1.1 (R = 9)"
