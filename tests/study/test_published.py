"""Published numbers beside ours, cost against quality, spread over seeds."""

import pytest

from bitcycle.analysis.statistics import brown_forsythe
from bitcycle.recipes import Published
from bitcycle.study.study import Method
from bitcycle.study.summary import (
    cost_relation,
    published_difference,
    published_relative_cost,
    published_value,
    published_values,
    sources,
    summarize,
    variance_rows,
)
from tests.study.made_up import config, method, study_result


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


def test_sources_are_named_once():
    entries = [(method(label, published={"accuracy": 1.0}), {}, 1.0) for label in "ab"]
    assert sources(study_result(entries)) == ("CPT Table 2",)


def suite(values, **changes):
    """Schedules of rising cost, with a static baseline that is dearest and worst."""
    entries = [
        (method(f"s{i}", f"CR:3-8:{i + 1}", changes={"name": f"s{i}"}), {0: value}, 10.0 + i)
        for i, value in enumerate(values)
    ]
    entries.append((method("static", 8), {0: 0.0}, 100.0))
    return summarize(study_result(entries, kind="suite", baseline="static", **changes))[0]


def test_the_relation_is_over_the_methods_whose_bits_change():
    relation = cost_relation(suite([1.0, 3.0, 2.0, 4.0, 5.0]))
    assert relation.labels == ("s0", "s1", "s2", "s3", "s4")
    assert relation.correlation.rho == pytest.approx(0.9)  # ranks differ by 0 1 -1 0 0
    assert relation.correlation.n == 5
    assert relation.front == ("s0", "s1", "s3", "s4")


def test_dearer_is_better_counts_as_positive_for_a_perplexity_too():
    group = suite([5.0, 4.0, 3.0, 2.0])
    lower_is_better = type(group)(
        group="", metric="perplexity", higher_is_better=False, baseline=None, rows=group.rows
    )
    assert cost_relation(group).correlation.rho == -1
    assert cost_relation(lower_is_better).correlation.rho == 1


def test_deviations_are_tested_against_the_baseline():
    wide, narrow = [1.0, 5.0, 9.0], [4.0, 5.0, 6.0]
    result = study_result(
        [
            (method("static", 8), dict(enumerate(wide)), 2.0),
            (method("CPT", "CR:3-8:8"), dict(enumerate(narrow)), 1.0),
            (method("two seeds", 4), {0: 1.0, 1: 3.0}, 1.0),
            (method("one seed", 5), {0: 1.0}, 1.0),
        ],
        baseline="static",
    )
    cpt, two = variance_rows(summarize(result)[0])
    assert (cpt.label, cpt.std, cpt.baseline_std) == ("CPT", 1.0, 4.0)
    assert cpt.test == brown_forsythe([narrow, wide])
    assert (two.label, two.test) == ("two seeds", None)
