"""Prices from one trace are what `training_cost` says, whatever the schedule and the convention."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bitcycle as bc
from bitcycle.cost import CONVENTIONS
from bitcycle.cost.plan_price import Pricer
from bitcycle.cost.plan_runs import find_runs
from bitcycle.schedules import parse_schedule
from tests import toys


def pricer(model: nn.Module, inputs: Tensor, backward: int | str = 8, **changes: Any) -> Pricer:
    options = {"total_steps": 97, "samples_per_step": 5, "batch_size": None, "convention": "exact"}
    return Pricer.of(model, inputs, backward=parse_schedule(backward), **{**options, **changes})


@pytest.mark.parametrize("convention", CONVENTIONS.names())
@pytest.mark.parametrize("backward", [8, 6, "fp32", "CR:6-8:3", "stages:4@0.3,8"])
def test_a_price_is_the_training_cost_of_the_same_schedules(
    convention: str, backward: int | str
) -> None:
    model, inputs = bc.quantize_model(toys.net(), skip=["head.2"]), toys.randn(2, 2, 6, 6)
    prices = pricer(model, inputs, backward, convention=convention)
    for forward in ("5", "CR:3-8:8", "delay@0.375(CR:4-8:2)", "ramp:3-8@0.5", "stages:3@0.9,8"):
        cost = bc.training_cost(
            model, inputs, forward=forward, backward=backward, total_steps=97, samples_per_step=5,
            convention=convention,
        )  # fmt: skip
        assert prices.bitops(find_runs(parse_schedule(forward), 97)) == cost.bitops
        if forward != "5":
            assert prices.upper_bound(8) == sum(layer.bitops for layer in cost.baseline_layers)


def test_the_hand_count_of_one_linear() -> None:
    model = bc.quantize_model(nn.Linear(4, 8))  # 32 MACs; a first layer has no grad_input
    prices = pricer(model, torch.ones(1, 4), 6, total_steps=10, samples_per_step=3)
    runs = find_runs(parse_schedule("stages:4@0.4,8"), 10)
    # 12 samples at q = 4 and 18 at q = 8: q q + q b
    assert prices.bitops(runs) == 32 * (12 * (16 + 24) + 18 * (64 + 48))
    assert prices.upper_bound(8) == 32 * 30 * (64 + 48)


def test_the_batch_of_the_example_is_that_of_the_run_unless_told_otherwise() -> None:
    model = bc.quantize_model(nn.Linear(4, 8))
    assert pricer(model, torch.ones(7, 4), samples_per_step=None).samples_per_step == 7


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"convention": "exakt"}, "unknown cost convention 'exakt'"),
        ({"samples_per_step": 0}, "samples_per_step must be a whole number of at least 1, got 0"),
    ],
)
def test_bad_settings_are_errors(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pricer(bc.quantize_model(nn.Linear(4, 8)), torch.ones(1, 4), **changes)


def test_a_float_model_is_an_error_since_every_schedule_would_cost_the_same() -> None:
    with pytest.raises(ValueError, match="no quantized layer"):
        pricer(nn.Linear(4, 8), torch.ones(1, 4))
