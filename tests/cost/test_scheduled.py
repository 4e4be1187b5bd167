"""Which bits schedules give to which layers, for how many steps."""

from __future__ import annotations

import pytest
from torch import nn

import bitcycle as bc
from bitcycle.cost.scheduled import find_plans
from tests import toys


def test_layers_have_their_scheduled_bits_and_the_rest_is_float32() -> None:
    model = bc.quantize_model(toys.linears(4, 8, 2), skip=["1"])
    plans = find_plans(model, dict(forward="stages:3@0.25,8", backward=6), 8)
    usages, tops = plans.usages(list(model), 8, 5)
    assert usages == [{(3, 3, 6): (2, 10), (8, 8, 6): (6, 30)}, {(32, 32, 32): (8, 40)}]
    assert tops == [(8, 8, 6), (32, 32, 32)]
    assert str(plans.top) == "w8a8e6g6"


def test_layers_with_different_tops_have_no_common_one() -> None:
    model = bc.quantize_model(toys.linears(4, 8, 2))
    assert find_plans(model, dict(forward={"*": 8, "1": 6}), 8).top is None


def test_where_conversion_is_not_needed_roles_inherit_as_in_a_scheduler() -> None:
    plans = find_plans(nn.Linear(4, 2), dict(forward=6, act=4), 8, needs_conversion=False)
    usages, tops = plans.usages([nn.Linear(4, 2)], 8, 1)
    assert usages == [{(6, 4, 32): (8, 8)}]
    assert tops == [(6, 4, 32)]


def test_a_float_model_is_warned_about_only_when_bits_are_lowered() -> None:
    find_plans(nn.Linear(4, 2), dict(forward="fp32"), 8)
    with pytest.warns(bc.BitcycleWarning, match="no quantized layer"):
        find_plans(nn.Linear(4, 2), dict(error=8), 8)


def test_bits_of_a_role_without_a_rule_stay_at_32() -> None:
    model = bc.quantize_model(nn.Linear(4, 2))
    plans = find_plans(model, dict(forward=24, backward=8), 3)
    assert plans.usages([model], 3, 1)[0] == [{(32, 32, 8): (3, 3)}]
