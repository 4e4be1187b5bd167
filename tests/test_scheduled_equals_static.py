"""At each step a scheduled model computes what a static model at that step's bits computes."""

import copy

import pytest
import torch
from torch import nn

import bitcycle as bc
from tests.toys import randn

STEPS = 12


class Net(nn.Module):
    """Convolution, BatchNorm, Linear, and a product of activations."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.fc = nn.Linear(6, 5)
        self.product = bc.MatMul()

    def forward(self, x):
        x = self.norm(self.conv(x)).relu().mean((2, 3))  # (N, 6)
        x = self.fc(x)
        return self.product(x, x.t())  # (N, N)


def make(weights=None):
    torch.manual_seed(0)
    model = Net()
    if weights is not None:
        model.load_state_dict(weights, strict=True)
    return bc.quantize_model(model, seed=7)


def static_at(weights, step, **bits):
    """A model that has never known other bits, at this step of its run."""
    model = make(weights)
    scheduler = bc.PrecisionScheduler(model, **bits, total_steps=STEPS)
    scheduler.load_state_dict({"step_count": step})
    return model


def output_and_gradients(model, step, num_micro_batches=2):
    model.zero_grad()
    outputs = []
    for micro_batch in range(num_micro_batches):
        outputs.append(model(randn(4, 2, 5, 5, seed=100 * step + micro_batch)))
        outputs[-1].square().mean().backward()
    return outputs + [p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize(
    ("forward", "backward"),
    [("CR:3-8:2", 8), ("CR:3-8:2", "stages:3@0.5,6"), ("seq(4@0.5, fp32)", "seq(fp32@0.25, 4)")],
)
def test_outputs_and_gradients_are_equal_at_every_step(forward, backward):
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    bits = bc.PrecisionScheduler(model, forward=forward, backward=backward, total_steps=STEPS)
    seen = set()
    for step in range(STEPS):
        weights = copy.deepcopy(bc.float_state_dict(model))
        seen.add(bits.precision)
        static = static_at(
            weights, step, forward=bits.precision.weight, backward=bits.precision.error
        )
        expected = output_and_gradients(static, step)
        for ours, theirs in zip(output_and_gradients(model, step), expected, strict=True):
            assert torch.equal(ours, theirs)
        optimizer.step()
        bits.step()
    assert len(seen) > 2  # the schedule did change the bits


def test_the_equality_is_not_empty_bits_steps_and_seeds_all_matter():
    weights = bc.float_state_dict(make())
    base = output_and_gradients(static_at(weights, 3, forward=4, backward=4), 0)
    other_bits = output_and_gradients(static_at(weights, 3, forward=5, backward=4), 0)
    other_step = output_and_gradients(static_at(weights, 4, forward=4, backward=4), 0)
    assert not torch.equal(base[0], other_bits[0])
    assert torch.equal(base[0], other_step[0])  # outputs take no noise
    assert not torch.equal(base[2], other_step[2])  # gradients do
