"""Statistics of a study: differences, costs, budgets, spread, published values."""

import math
from dataclasses import replace

import pytest

from bitcycle_lab.recipes import Published
from bitcycle_lab.study.study import Method
from bitcycle_lab.study.summary import (
    best_by_budget,
    best_within,
    cost_correlation,
    published_difference,
    published_relative_cost,
    published_value,
    published_values,
    summarize,
)
from bitcycle_lab.tasks import DataConfig, ModelConfig
from tests.bitcycle_lab.study.made_up import config, method, study_result

# -- methods against a baseline -------------------------------------------------------------------


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
    return {row.label: row for row in group.methods}


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
    assert [rows[CPT].result.count(s) for s in ("done", "failed", "missing")] == [1, 1, 1]


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
    assert one.methods[1].difference.mean == 2.0
    assert (two.baseline, [row.relative_cost for row in two.methods]) == ("a", [1.0])
    assert (three.baseline, three.methods[0].difference) == (None, None)


# -- equal BitOPs -----------------------------------------------------------------------------


def test_best_within_a_budget_is_the_best_mean_that_it_pays():
    [group] = summarize(three())
    best = [best_within(group.done, budget, higher_is_better=True)
            for budget in (49.0, 50.0, 99.9, 100.0, 1e9)]  # fmt: skip
    assert [each and each.label for each in best] == [None, LOW, LOW, CPT, CPT]
    assert best_within(group.done, 1e9, higher_is_better=False).label == LOW


def test_means_that_differ_by_rounding_are_equal():
    # 1783 of 1800 right in both
    dear = [99.1666666667, 98.6111111111, 98.8888888889, 98.8888888889, 99.7222222222]
    cheap = [98.8888888889, 98.6111111111, 99.7222222222, 99.4444444444, 98.6111111111]
    entries = [
        (method("a", 8), dict(enumerate(dear)), 567.0),
        (method("b", 4), dict(enumerate(cheap)), 359.0),
    ]
    [group] = summarize(study_result(entries, seeds=(0, 1, 2, 3, 4)))
    assert best_within(group.done, 600.0, higher_is_better=True).label == "b"
    assert [row.is_on_front for row in group.methods] == [False, True]


def test_budgets_are_the_costs_of_the_methods_each_once():
    [group] = summarize(three())
    assert [(bitops, best.label) for bitops, best in best_by_budget(group)] == [
        (50.0, LOW), (100.0, CPT), (200.0, CPT),
    ]  # fmt: skip
    [none] = summarize(study_result([(method("a", 8), {}, 1.0)]))
    assert best_by_budget(none) == []


# -- published values, correlation, spread --------------------------------------------------------


def twice(*values):
    published = tuple(
        Published(where=f"Table {i}", metric="accuracy", value=value, unit="%")
        for i, value in enumerate(values)
    )
    return Method(label="m", config=config(), published=published)


def test_two_tables_that_disagree_give_both_and_no_single_value():
    method = twice(72.9, 72.7)
    assert [p.value for p in published_values(method, "accuracy")] == [72.9, 72.7]
    assert published_value(method, "accuracy") is None
    assert published_difference(method, twice(70.0), "accuracy") is None


def test_difference_and_cost_are_to_the_published_baseline():
    base = method("static", published={"accuracy": 71.44, "cost": 267e6})
    cpt = method("CPT", "CR:3-8:8", published={"accuracy": 72.35, "cost": 168e6})
    assert round(published_difference(cpt, base, "accuracy"), 2) == 0.91
    assert round(published_relative_cost(cpt, base), 3) == 0.629
    assert published_relative_cost(base, base) == 1
    assert published_difference(base, base, "accuracy") is None
    assert published_difference(cpt, None, "accuracy") is None
    assert published_relative_cost(cpt, method("other")) is None


def suite(values, **changes):
    """Schedules of rising cost, with a static baseline that is the most expensive and worst."""
    entries = [
        (method(f"s{i}", f"CR:3-8:{i + 1}", changes={"name": f"s{i}"}), {0: value}, 10.0 + i)
        for i, value in enumerate(values)
    ]
    entries.append((method("static", 8), {0: 0.0}, 100.0))
    return summarize(study_result(entries, kind="suite", baseline="static", **changes))[0]


def test_the_relation_is_over_the_methods_whose_bits_change():
    group = suite([1.0, 3.0, 2.0, 4.0, 5.0])
    assert cost_correlation(group).rho == pytest.approx(0.9)  # ranks differ by 0 1 -1 0 0
    assert cost_correlation(group).n == 5
    assert [each.label for each in group.front] == ["s0", "s1", "s3", "s4"]


def test_more_expensive_is_better_counts_as_positive_for_a_perplexity_too():
    group = suite([5.0, 4.0, 3.0, 2.0])
    assert cost_correlation(group).rho == -1
    assert cost_correlation(replace(group, higher_is_better=False)).rho == 1


# -- verdicts -------------------------------------------------------------------------------------

BASE = {0: 90.0, 1: 91.0, 2: 92.0}


@pytest.mark.parametrize(
    ("values", "margin", "verdict"),
    [
        ({0: 91.9, 1: 93.0, 2: 94.1}, None, "better"),  # 1.9 2.0 2.1: +- 4.3027 * 0.1 / sqrt(3)
        ({0: 88.1, 1: 89.0, 2: 89.9}, None, "worse"),
        ({0: 90.0, 1: 91.1, 2: 91.9}, None, "no different"),  # 0 0.1 -0.1: +- 0.25, within 1 point
        (
            {0: 90.0, 1: 91.1, 2: 91.9},
            0.2,
            "undecided, needs 4 seeds",
        ),  # 3.182 * 0.1 / sqrt(4) = 0.16
        ({0: 91.0, 1: 93.0, 2: 95.0}, None, "undecided, needs 4 seeds"),  # 1 2 3: -0.5 to 4.5
        ({0: 91.0, 1: 93.0, 2: 95.0}, 5.0, "no different"),
        ({0: 91.0, 1: 92.0, 2: 93.0}, None, "undecided"),  # the same in every seed: no interval
        (BASE, None, "equal"),
        ({0: 91.0}, None, "undecided"),
        ({0: 91.0, 1: math.nan}, None, "not finite"),
        ({0: 190.0, 1: -8.0, 2: 92.1}, 1e-3, "undecided, needs more than 10,000 seeds"),
        ({}, None, ""),
    ],
)
def test_a_verdict_follows_from_the_interval_and_the_margin(values, margin, verdict):
    entries = [(method("static", 8), BASE, 200.0), (method("CPT", "CR:3-8:8"), values, 126.0)]
    [group] = summarize(study_result(entries, baseline="static", margin=margin))
    assert [group.verdict(each) for each in group.methods] == ["", verdict]
    given = {None: "1 point", 0.2: "0.2 points", 5.0: "5 points", 1e-3: "0.001 points"}
    assert group.margin_text == given[margin]


def test_a_smaller_perplexity_is_better_and_one_percent_of_the_baseline_matters():
    changes = {
        "task": "language",
        "model": ModelConfig(name="lstm_lm"),
        "data": DataConfig(name="ptb", batch_size=4),
    }
    base, close, less = {0: 100.0, 1: 102.0}, {0: 100.1, 1: 102.0}, {0: 90.0, 1: 92.1}
    entries = [
        (method(label, text, changes=changes), values, 1.0)
        for label, text, values in (
            ("static", 8, base), ("close", "CR:3-8:8", close), ("less", "CR:4-8:8", less),
        )
    ]  # fmt: skip
    [group] = summarize(study_result(entries, seeds=(0, 1), baseline="static"))
    assert [group.verdict(each) for each in group.methods] == ["", "no different", "better"]
    assert group.margin_text == "1 % of the baseline"
