"""Published numbers beside ours."""

from bitcycle.recipes import Published
from bitcycle.study.base import Method
from bitcycle.study.published import (
    published_difference,
    published_relative_cost,
    published_value,
    published_values,
    sources,
)
from tests.study.made_up import config, method, study_result


def twice(*values):
    published = tuple(
        Published(where=f"Table {i}", metric="accuracy", value=value, unit="%")
        for i, value in enumerate(values)
    )
    return Method(label="m", config=config(), published=published)


def test_equal_numbers_of_two_tables_count_once():
    assert [p.value for p in published_values(twice(72.35, 72.35), "accuracy")] == [72.35]
    assert published_value(twice(72.35, 72.35), "accuracy") == 72.35


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
