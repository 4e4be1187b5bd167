"""The numbers and the table of a Cost."""

from __future__ import annotations

import dataclasses

import pytest

from bitcycle.cost import Cost, LayerCost


def layer(name: str, scale: int) -> LayerCost:
    return LayerCost(
        name=name,
        kind="Linear",
        output=scale * 10**9,
        grad_input=scale * 2 * 10**9,
        grad_weight=scale * 3 * 10**9,
        traffic=scale * 8 * 10**9,
    )


COST = Cost(
    convention="exact",
    layers=(layer("a", 1), layer("b", 2)),
    baseline_layers=(layer("a", 4), layer("b", 8)),
    baseline="static w8a8e8",
    num_steps=1000,
    num_samples=128_000,
    uncounted=("attention: bmm x2",),
)
EMPTY = dataclasses.replace(COST, layers=(), baseline_layers=())


def test_totals_are_sums_over_layers_and_over_matmuls() -> None:
    assert COST.by_layer() == {"a": 6 * 10**9, "b": 12 * 10**9}
    assert COST.by_matmul() == {
        "output": 3 * 10**9,
        "grad_input": 6 * 10**9,
        "grad_weight": 9 * 10**9,
    }
    assert COST.bitops == 18 * 10**9
    assert COST.traffic == 24 * 10**9
    assert isinstance(COST.bitops, int)


def test_relative_and_saving_compare_with_the_baseline() -> None:
    assert (COST.relative, COST.saving, COST.relative_traffic) == (0.25, 0.75, 0.25)


def test_nothing_compared_with_nothing_is_no_saving() -> None:
    assert (EMPTY.bitops, EMPTY.relative, EMPTY.saving) == (0, 1.0, 0.0)


def test_the_table_names_the_convention_and_what_was_not_counted() -> None:
    assert (
        str(COST)
        == """\
cost, convention 'exact': 1,000 steps, 128,000 samples; relative to static w8a8e8
matmul       GBitOPs  relative
-----------  -------  --------
output             3    0.2500
grad_input         6    0.2500
grad_weight        9    0.2500
all               18    0.2500
saving 75.00%; operand traffic 3 GB, 0.2500 of the baseline's
not counted:
  attention: bmm x2"""
    )


def test_the_layer_table_has_a_row_per_layer() -> None:
    assert COST.layer_table().splitlines()[3:6] == [
        "a            6    0.2500",
        "b           12    0.2500",
        "all         18    0.2500",
    ]


def test_a_cost_is_frozen_and_equal_by_its_numbers() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        COST.num_steps = 1
    assert dataclasses.replace(COST, baseline="in other words") == COST
    assert dataclasses.replace(COST, num_steps=1) != COST
