"""Samples that are two tensors."""

import numpy as np
import pytest
import torch

from bitcycle.data import Batches, Key, OnePass, Samples, Tensors


@pytest.fixture
def samples():
    return Tensors(torch.arange(20.0).view(10, 2), torch.arange(10))


def test_samples_come_in_the_order_asked_for_and_are_never_augmented(samples):
    for key in (None, Key(seed=0, epoch=3)):
        inputs, targets = samples.fetch(np.array([7, 0, 7]), key)
        assert targets.tolist() == [7, 0, 7]
        assert inputs.tolist() == [[14.0, 15.0], [0.0, 1.0], [14.0, 15.0]]


def test_they_are_samples_that_loaders_take(samples):
    assert isinstance(samples, Samples)
    assert len(samples) == 10
    seen = [batch.targets for batch in OnePass(samples, batch_size=4)]
    assert torch.cat(seen).tolist() == list(range(10))
    batches = Batches(samples, batch_size=4, seed=0)
    epoch = torch.cat([batches.batch_at(step).targets for step in range(3)])
    assert sorted(epoch.tolist()) == list(range(10))


@pytest.mark.parametrize("shapes", [((3, 2), (4,)), ((), ()), ((3,), ())])
def test_one_input_and_one_target_per_sample(shapes):
    with pytest.raises(ValueError, match="one entry per sample"):
        Tensors(*(torch.zeros(shape) for shape in shapes))


def test_they_move_to_a_device(samples):
    moved = samples.to("meta")
    assert moved.inputs.device.type == moved.targets.device.type == "meta"
