"""Rows, differences, costs and budgets of a study."""

import pytest

from bitcycle.study.summary import best_within, budgets, has_changing_bits, summarize
from tests.study.made_up import config, method, study_result

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


def test_failed_and_missing_runs_leave_what_there_is():
    rows = rows_of(compared())
    assert rows[CPT].summary.n == rows[CPT].difference.n == 1
    assert rows[CPT].difference.mean == 2.0
    assert rows[CPT].difference.p is rows[CPT].summary.low is None
    low = rows[LOW]
    assert low.summary is low.difference is low.relative_cost is low.bitops is None
    assert not low.is_on_front
    assert [rows[CPT].method.count(s) for s in ("done", "failed", "missing")] == [1, 1, 1]


def test_the_front_is_that_of_mean_and_cost():
    rows = rows_of(three())
    assert [rows[label].is_on_front for label in (STATIC, CPT, LOW)] == [False, True, True]


def test_without_a_baseline_there_are_no_differences():
    [group] = summarize(three(baseline=None))
    assert group.baseline is group.baseline_row is None
    assert group.others == ()
    assert all(row.relative_cost is None for row in group.rows)


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


def test_better_is_judged_by_the_metric_and_the_interval():
    [group] = summarize(three())
    static, cpt, low = group.rows
    assert (group.is_better(static), group.is_better(cpt), group.is_better(low)) == (
        None, True, False,
    )  # fmt: skip


# -- equal BitOPs -----------------------------------------------------------------------------


def test_best_within_a_budget_is_the_best_mean_that_it_pays():
    [group] = summarize(three())
    assert best_within(group, 49.0) is None
    assert best_within(group, 50.0).label == LOW
    assert best_within(group, 99.9).label == LOW
    assert best_within(group, 100.0).label == CPT
    assert best_within(group, 1e9).label == CPT


def test_of_equal_means_the_cheaper_one_is_best():
    result = study_result(
        [(method("a", 8), {0: 5.0}, 10.0), (method("b", 4), {0: 5.0}, 4.0)], baseline="a"
    )
    [group] = summarize(result)
    assert best_within(group, 20.0).label == "b"


def test_means_that_differ_by_rounding_are_equal():
    # 1783 of 1800 right in both
    dear = {
        0: 99.1666666667,
        1: 98.6111111111,
        2: 98.8888888889,
        3: 98.8888888889,
        4: 99.7222222222,
    }
    cheap = {
        0: 98.8888888889,
        1: 98.6111111111,
        2: 99.7222222222,
        3: 99.4444444444,
        4: 98.6111111111,
    }
    entries = [(method("a", 8), dear, 567.0), (method("b", 4), cheap, 359.0)]
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


@pytest.mark.parametrize(
    ("forward", "changes"),
    [(8, False), ("fp32", False), ("CR:3-8:8", True), ("stages:3@9,8", True)],
)
def test_which_bits_change(forward, changes):
    assert has_changing_bits(config(forward)) is changes
