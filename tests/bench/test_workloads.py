"""The networks that are timed."""

import pytest
import torch

from bitcycle.bench.workloads import WORKLOADS


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_has_a_finite_loss_and_gradients(name):
    load = WORKLOADS[name](True)
    loss = load.loss(load.model(*load.inputs))
    loss.backward()
    assert torch.isfinite(loss)
    assert all(parameter.grad is not None for parameter in load.model.parameters())
    assert load.size


@pytest.mark.parametrize("name", ["transformer-d512", "transformer-d1024"])
def test_the_faster_float_model_is_the_same_function(name):
    load = WORKLOADS[name](True)
    assert load.float_model is not None
    expected, found = load.model(*load.inputs), load.float_model(*load.inputs)
    assert not torch.equal(load.inputs[0], expected)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["resnet20-w16", "resnet20-w64", "bottleneck"])
def test_convolutions_run_channels_last_which_is_their_fastest_layout(name):
    load = WORKLOADS[name](True)
    assert load.inputs[0].is_contiguous(memory_format=torch.channels_last)
    convs = [m for m in load.model.modules() if isinstance(m, torch.nn.Conv2d)]
    assert convs
    assert all(c.weight.is_contiguous(memory_format=torch.channels_last) for c in convs)
