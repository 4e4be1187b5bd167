"""`Accelerator.register_for_checkpointing` with a real accelerator, in one process."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bitcycle as bc
from tests.bitcycle.toys import linears, randn

accelerate = pytest.importorskip("accelerate")
STEPS = 8


def rise(step, total):
    return 4 + 5 * step // total


def run(folder, forward, *, first=0, stop=STEPS, is_resumed=False):
    """Steps first to stop of a run whose state Accelerate keeps; its bits, and what is left."""
    accelerator = accelerate.Accelerator(cpu=True)
    model = bc.quantize_model(linears(4, 8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    bits = bc.PrecisionScheduler(model, forward=forward, backward=8, total_steps=STEPS)
    meter = bc.CostMeter(model, randn(2, 4))
    accelerator.register_for_checkpointing(bits, meter)
    if is_resumed:
        accelerator.load_state(folder)
    seen = []
    for step in range(first, stop):
        seen.append(str(bits.precision))
        loss = model(randn(2, 4, seed=step)).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        meter.step()
        bits.step(1.0)  # a loss that does not fall
    accelerator.save_state(folder)
    return seen, bits, meter, model


@pytest.mark.parametrize(
    "forward",
    ["CR:3-8:1", rise, {"*": [4, 8], "1": "bf16"}, "plateau:3-5:window=1:patience=0"],
    ids=["text", "function", "patterns", "adaptive"],
)
def test_bits_and_cost_come_back_from_the_state_of_an_accelerator(tmp_path, forward):
    seen, whole, meter, model = run(tmp_path / "whole", forward)
    before, *_ = run(tmp_path / "cut", forward, stop=3)
    after, resumed, other_meter, other = run(tmp_path / "cut", forward, first=3, is_resumed=True)
    assert before + after == seen
    assert resumed.state_dict() == whole.state_dict()
    assert other_meter.state_dict() == meter.state_dict()
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


def test_another_function_is_noticed_when_the_state_is_loaded(tmp_path):
    run(tmp_path, rise, stop=3)
    with pytest.raises(ValueError, match="weight and act"):
        run(tmp_path, lambda step, total: 4, first=3, is_resumed=True)


def test_the_scheduler_is_taken_as_an_object_with_a_state():
    accelerator = accelerate.Accelerator(cpu=True)
    model = bc.quantize_model(nn.Linear(2, 2))
    bits = bc.PrecisionScheduler(model, forward=4, total_steps=2)
    accelerator.register_for_checkpointing(bits)  # raises for others
