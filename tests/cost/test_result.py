"""The numbers and the table of a Cost."""

from __future__ import annotations

import dataclasses
import json

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
        uniform=scale * 40,
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
    assert (COST.uniform_traffic, COST.relative_uniform_traffic) == (120, 0.25)


def test_nothing_compared_with_nothing_is_no_saving() -> None:
    assert (EMPTY.bitops, EMPTY.relative, EMPTY.saving) == (0, 1.0, 0.0)


def test_the_table_names_the_convention_and_what_was_not_counted() -> None:
    assert (
        str(COST)
        == """\
cost by convention 'exact': 1,000 steps, 128,000 samples
relative to static w8a8e8
matmul       GBitOPs   share  relative
-----------  -------  ------  --------
output             3   16.7%    0.2500
grad_input         6   33.3%    0.2500
grad_weight        9   50.0%    0.2500
all               18  100.0%    0.2500
saving 75.00%
operand traffic 3 GB, 0.2500 of the baseline's (a model, not a measurement);
  0.2500 if all operands were equally large
not counted:
  attention: bmm x2"""
    )


def test_the_layer_table_has_a_row_per_layer() -> None:
    assert COST.layer_table().splitlines()[4:7] == [
        "a            6   33.3%    0.2500",
        "b           12   66.7%    0.2500",
        "all         18  100.0%    0.2500",
    ]


def test_a_stage_is_the_shortest_prefix_that_no_half_of_the_layers_shares() -> None:
    for names, stages in (
        (["conv1", "layer1.0.conv1", "layer1.0.conv2", "fc"], ["conv1", "layer1", "fc"]),
        (
            ["layers.0.q", "layers.0.k", "layers.1.q", "layers.1.k", "decoder"],
            ["layers.0", "layers.1", "decoder"],
        ),
        (["0", "1", "2"], ["0", "1", "2"]),
        (["net.body.conv"], ["net.body.conv"]),
        ([""], [""]),
    ):
        layers = tuple(layer(name, 1) for name in names)
        cost = dataclasses.replace(COST, layers=layers, baseline_layers=layers)
        assert list(cost.by_stage()) == stages
        assert sum(cost.by_stage().values()) == cost.bitops


def test_the_stage_table_adds_up_the_layers_of_a_stage() -> None:
    layers = tuple(layer(name, 1) for name in ("a.x", "a.y", "b", "c"))
    cost = dataclasses.replace(COST, layers=layers, baseline_layers=layers)
    assert cost.stage_table().splitlines()[4:6] == [
        "a           12   50.0%    1.0000",
        "b            6   25.0%    1.0000",
    ]


def test_large_costs_are_written_in_powers_of_ten_all_alike() -> None:
    layers = (layer("a", 10**6), layer("b", 1))
    table = dataclasses.replace(COST, layers=layers, baseline_layers=layers).layer_table()
    assert "6.000e+06" in table
    assert "6.000e+00" in table


def test_the_unit_of_the_convention_is_in_the_table() -> None:
    assert "GMACs" in str(dataclasses.replace(COST, unit="MACs"))


def test_a_dict_of_json_types_has_every_number() -> None:
    data = COST.to_dict()
    assert json.loads(json.dumps(data)) == data
    assert (data["convention"], data["bitops"], data["saving"]) == ("exact", 18 * 10**9, 0.75)
    assert data["by_layer"] == {"a": 6 * 10**9, "b": 12 * 10**9}
    assert data["uncounted"] == ["attention: bmm x2"]


def test_a_cost_is_frozen_and_equal_by_its_numbers() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        COST.num_steps = 1
    assert dataclasses.replace(COST, baseline="in other words") == COST
    assert dataclasses.replace(COST, num_steps=1) != COST
