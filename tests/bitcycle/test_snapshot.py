"""A moment of training comes back to the bit."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel

import bitcycle as bc
from bitcycle.snapshot import Snapshot, preserved
from tests.bitcycle.toys import net, randn


def everything(model):
    """All that a training step can change in a model, as values."""
    return {
        **{f"parameter {n}": p.detach().clone() for n, p in model.named_parameters()},
        **{f"grad {n}": p.grad if p.grad is None else p.grad.clone()
           for n, p in model.named_parameters()},
        **{f"buffer {n}": b.clone() for n, b in model.named_buffers()},
        "bits": [m.precision for m in model.modules() if hasattr(m, "precision")],
        "clocks": [m.shared.step for m in model.modules() if hasattr(m, "shared")],
        "modes": [m.training for m in model.modules()],
    }  # fmt: skip


def assert_same(one, other):
    assert one.keys() == other.keys()
    for key in one:
        same = (
            torch.equal(one[key], other[key])
            if isinstance(one[key], torch.Tensor)
            else one[key] == other[key]
        )
        assert same, key


def train(model, optimizer, steps=3):
    for seed in range(steps):
        optimizer.zero_grad()
        model(randn(5, 2, 6, 6, seed=seed)).square().mean().backward()
        optimizer.step()


@pytest.fixture
def model():
    model = bc.quantize_model(net())
    bc.set_precision(model, "w4a4e6")
    return model


@pytest.mark.parametrize("has_trained", [False, True])
def test_a_model_comes_back_with_gradients_buffers_bits_clocks_and_modes(model, has_trained):
    optimizer = SGD(model.parameters(), lr=0.1)
    if has_trained:
        train(model, optimizer)
    before, snapshot = everything(model), Snapshot(model, [optimizer])
    bc.PrecisionScheduler(model, forward="CR:3-8:1", backward=8, total_steps=9).step()
    train(model, optimizer)
    model.eval()
    snapshot.restore()
    assert_same(everything(model), before)


def test_training_goes_on_as_if_nothing_had_been_in_between(model):
    """Noise, dropout, momentum and running ranges included."""

    def rest(model, optimizer):
        train(model, optimizer)
        return everything(model)

    optimizer = Adam(model.parameters(), lr=0.01)
    train(model, optimizer)
    snapshot = Snapshot(model, [optimizer])
    expected = rest(model, optimizer)
    snapshot.restore()
    assert_same(rest(model, optimizer), expected)
    snapshot.restore()  # as often as one likes
    assert_same(rest(model, optimizer), expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda o: CosineAnnealingLR(o, T_max=10),
        lambda o: LambdaLR(o, lambda step: 1 / (1 + step)),
        lambda o: ReduceLROnPlateau(o, patience=0),
    ],
)
def test_optimizer_and_learning_rate_come_back(model, make):
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = make(optimizer)
    snapshot = Snapshot(model, [optimizer, scheduler])
    state = dict(scheduler.state_dict())
    train(model, optimizer)
    for _ in range(3):
        scheduler.step(1.0) if isinstance(scheduler, ReduceLROnPlateau) else scheduler.step()
    assert optimizer.param_groups[0]["lr"] != 0.1
    snapshot.restore()
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert not optimizer.state
    assert dict(scheduler.state_dict()) == state


def test_a_scheduler_of_bits_comes_back_with_its_step(model):
    bits = bc.PrecisionScheduler(model, forward="LR:3-8:1", backward=8, total_steps=10)
    bits.step()
    before, snapshot = everything(model), Snapshot(model, [bits])
    for _ in range(4):
        bits.step()
    snapshot.restore()
    assert bits.step_count == 1
    assert_same(everything(model), before)


def test_averaged_weights_come_back_like_the_model(model):
    average = AveragedModel(model)
    snapshot = Snapshot(model, [average])
    before = everything(average)
    train(model, SGD(model.parameters(), lr=0.1))
    average.update_parameters(model)
    snapshot.restore()
    assert_same(everything(average), before)


def test_random_generators_come_back():
    def draw():
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    snapshot = Snapshot(nn.Linear(1, 1))
    first = draw()
    assert draw() != first
    snapshot.restore()
    assert draw() == first


def test_the_model_and_the_others_come_back_when_one_of_them_fails(model):
    class Broken:
        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            raise RuntimeError("cannot load")

    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    before, snapshot = everything(model), Snapshot(model, [Broken(), optimizer])
    drawn = float(torch.rand(()))
    train(model, optimizer)
    bc.set_precision(model, 3)
    with pytest.raises(RuntimeError, match="cannot load"):
        snapshot.restore()
    assert_same(everything(model), before)
    assert not optimizer.state
    assert float(torch.rand(())) == drawn


def test_what_has_no_state_is_refused():
    with pytest.raises(TypeError, match="list"):
        Snapshot(nn.Linear(1, 1), [[]])


def test_gradients_are_on_while_a_model_is_preserved_and_as_before_after_it() -> None:
    with torch.no_grad():
        with preserved(nn.Linear(1, 1)):
            assert torch.is_grad_enabled()
        assert not torch.is_grad_enabled()
