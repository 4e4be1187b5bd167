"""The cost of a run as it happens equals what was said before it."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import bitcycle as bc
from bitcycle.cost import count_macs
from bitcycle_lab.models import build_model
from tests.bitcycle import toys
from tests.bitcycle.schedules.strategies import cycle_schedules


class CountOps(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.num_ops = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.num_ops += 1
        return func(*args, **(kwargs or {}))


def train(model: nn.Module, bits: bc.PrecisionScheduler, meter: bc.CostMeter, x) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while not bits.finished:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        meter.step()
        bits.step()


@pytest.mark.parametrize(
    ("skip", "schedules"),
    [
        ([], {"forward": "CR:3-8:2", "backward": 8}),
        (["conv"], {"forward": "LT:2-6:4", "backward": "stages:8@0.5,6"}),
        (["head.2"], {"weight": 4, "act": {"conv": "CR:3-8:2"}, "error": "ramp:6-8@0.5"}),
        ([], {"forward": {"*": 8, "head.*": "CR:3-6:1"}, "backward": "fp32"}),
    ],
)
def test_a_scheduled_run_costs_exactly_what_was_said_before_it(skip, schedules) -> None:
    model = bc.quantize_model(toys.net(), skip=skip)
    x = toys.randn(5, 2, 6, 6)
    before = bc.training_cost(model, x, total_steps=40, baseline="FW8/BW8", **schedules)
    meter = bc.CostMeter(model, x)
    train(model, bc.PrecisionScheduler(model, total_steps=40, **schedules), meter, x)
    assert meter.cost("FW8/BW8") == before
    assert meter.bitops == before.bitops
    assert meter.traffic == before.traffic
    assert meter.by_layer() == before.by_layer()
    assert meter.by_matmul() == before.by_matmul()
    assert meter.relative_to("FW8/BW8") == before.relative
    assert (meter.num_steps, meter.num_samples) == (40, 200)


def test_the_default_baseline_is_the_most_bits_that_were_used() -> None:
    model, x = bc.quantize_model(toys.linears(4, 8, 2)), torch.ones(3, 4)
    before = bc.training_cost(model, x, forward="CR:3-8:2", backward=8, total_steps=40)
    meter = bc.CostMeter(model, x)
    bits = bc.PrecisionScheduler(model, forward="CR:3-8:2", backward=8, total_steps=40)
    for _ in range(40):
        meter.step()
        bits.step()
    assert meter.cost() == before


def test_partial_batches_count_by_their_samples() -> None:
    model = bc.quantize_model(nn.Linear(4, 8))
    meter = bc.CostMeter(model, torch.ones(16, 4))
    bc.set_precision(model, "FW4/BW8")
    meter.step()
    meter.step(num_samples=5)
    assert meter.bitops == 21 * 32 * (16 + 32)
    # weights are read in both steps
    assert meter.traffic == 21 * (4 * 4 + 8 * 8 + 4 * 4) + 2 * 32 * 4


def test_a_wrong_number_of_samples_is_an_error() -> None:
    for wrong in (0, -3, 2.0, True, torch.tensor(4)):
        meter = bc.CostMeter(nn.Linear(4, 8), torch.ones(16, 4))
        with pytest.raises(ValueError, match="num_samples"):
            meter.step(wrong)
        assert meter.num_steps == 0


def test_a_step_runs_no_tensor_operation_and_leaves_no_hook() -> None:
    model = bc.quantize_model(build_model("resnet8"))
    meter = bc.CostMeter(model, model.example_inputs(2))
    assert not nn.modules.module._has_any_global_hook()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    bits = bc.PrecisionScheduler(model, forward="CR:3-8:2", backward=8, total_steps=20)
    num_ops = 0
    for _ in range(20):
        with CountOps() as counter:
            meter.step()
        num_ops += counter.num_ops
        bits.step()
    assert num_ops == 0
    assert meter.num_steps == 20


def test_bits_set_by_hand_are_what_counts() -> None:
    model = bc.quantize_model(toys.linears(4, 8, 2))
    meter = bc.CostMeter(model, torch.ones(1, 4))
    meter.step()
    bc.set_precision(model, {"*": "FW4/BW8", "1": "FW6/BW8"})
    meter.step()
    with bc.at_precision(model, "FW2/BW2"):
        pass
    meter.step()
    assert meter.by_layer() == {
        "0": 32 * (2 * 1024 + 2 * (16 + 32)),
        "1": 16 * (3 * 1024 + 2 * (36 + 2 * 48)),
    }


def test_a_model_converted_after_the_meter_was_built_counts_its_bits() -> None:
    model = nn.Linear(4, 8)
    meter = bc.CostMeter(model, torch.ones(1, 4))
    meter.step()
    bc.quantize_model(model)
    bc.set_precision(model, "FW8/BW8")
    meter.step()
    bc.unquantize_model(model)
    meter.step()
    assert meter.bitops == 32 * 2 * (1024 + 64 + 1024)


def test_a_float_model_can_be_metered() -> None:
    meter = bc.CostMeter(nn.Linear(4, 8), torch.ones(1, 4))
    meter.step()
    assert meter.bitops == 2 * 32 * 1024
    assert meter.relative_to("FW8/BW8") == 1.0  # it would not take these bits


def test_nothing_is_saved_before_the_first_step() -> None:
    meter = bc.CostMeter(bc.quantize_model(nn.Linear(4, 8)), torch.ones(1, 4))
    assert (meter.bitops, meter.relative_to("FW8/BW8"), meter.num_steps) == (0, 1.0, 0)
    assert meter.cost().by_layer() == {"": 0}


def test_the_state_survives_json_and_continues_exactly() -> None:
    def build() -> tuple[bc.PrecisionScheduler, bc.CostMeter]:
        model = bc.quantize_model(toys.linears(4, 8, 2))
        meter = bc.CostMeter(model, torch.ones(3, 4))
        schedule = {"forward": "CR:3-8:4", "backward": {"*": 8, "0": 6}}
        return bc.PrecisionScheduler(model, total_steps=50, **schedule), meter

    def run(bits: bc.PrecisionScheduler, meter: bc.CostMeter, until: int) -> None:
        while bits.step_count < until:
            meter.step(num_samples=1 + bits.step_count % 3)
            bits.step()

    bits, whole = build()
    run(bits, whole, 50)
    bits, first = build()
    run(bits, first, 23)
    saved = json.loads(json.dumps([bits.state_dict(), first.state_dict()]))
    bits, second = build()
    bits.load_state_dict(saved[0])
    second.load_state_dict(saved[1])
    assert second.state_dict() == first.state_dict()
    run(bits, second, 50)
    assert second.cost() == whole.cost()
    assert second.state_dict() == whole.state_dict()


def test_a_state_with_anything_but_counts_is_refused() -> None:
    for row in ([8, 8, None, 1, 1], [8, 8, 1, 1], [8, 8, 8, 1, -1], "text", 8):
        meter = bc.CostMeter(toys.linears(4, 8), torch.ones(3, 4))
        state = meter.state_dict()
        with pytest.raises(ValueError, match="layer"):
            meter.load_state_dict({**state, "layers": {"0": [row]}})


def test_the_state_of_another_model_is_refused() -> None:
    state = bc.CostMeter(toys.linears(4, 8, 2), torch.ones(3, 4)).state_dict()
    meter = bc.CostMeter(toys.linears(4, 8), torch.ones(3, 4))
    with pytest.raises(ValueError, match="layers 1"):
        meter.load_state_dict(state)


def test_what_is_not_counted_is_named() -> None:
    model = nn.Sequential(nn.Linear(4, 4), toys.Trilinear())
    assert bc.CostMeter(model, torch.ones(3, 4)).uncounted == ("1: _trilinear",)


def test_every_convention_ends_where_training_cost_began() -> None:
    for convention in ("exact", "paper", "followup"):
        model, x = bc.quantize_model(toys.net(), skip=["head.2"]), toys.randn(5, 2, 6, 6)
        roles = {"forward": "CR:3-8:2", "backward": 8}
        before = bc.training_cost(model, x, **roles, total_steps=40, convention=convention)
        meter = bc.CostMeter(model, x)
        train(model, bc.PrecisionScheduler(model, **roles, total_steps=40), meter, x)
        assert meter.cost(convention=convention) == before


@settings(max_examples=20)
@given(
    forward=cycle_schedules,
    error=cycle_schedules,
    steps=st.integers(64, 90),
    samples=st.integers(1, 9),
)
def test_any_schedule_ends_at_exactly_what_was_said_before_it(
    forward, error, steps, samples
) -> None:
    model, x = bc.quantize_model(toys.linears(4, 8, 2), skip=["0"]), torch.ones(samples, 4)
    roles = {"forward": forward, "error": error}
    before = bc.training_cost(model, x, **roles, total_steps=steps, baseline="FW8/BW8")
    meter = bc.CostMeter(model, x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bc.BitcycleWarning)  # short runs miss ends of a range
        bits = bc.PrecisionScheduler(model, **roles, total_steps=steps)
    while not bits.finished:
        meter.step()
        bits.step()
    assert meter.cost("FW8/BW8") == before


def test_bits_that_follow_the_training_are_counted_as_they_come() -> None:
    """What an adaptive rule does: no schedule knows these bits before the run."""
    model, x = bc.quantize_model(toys.net()), toys.randn(5, 2, 6, 6)
    meter, expected, bits = bc.CostMeter(model, x), 0, 3
    macs = sum(count_macs(model, x).macs.values())
    for _ in range(12):
        bc.set_precision(model, f"w{bits}a{bits}e{bits}")
        loss = model(x).square().mean()
        loss.backward()
        meter.step()
        expected += macs * bits * bits
        bits = bits + 1 if loss.item() > 1e-3 and bits < 8 else bits
    assert meter.bitops == expected
