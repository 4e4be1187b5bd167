"""Tests of what the image classifiers share."""

from __future__ import annotations

import math

import pytest
import torch

from bitcycle.models.image import BasicBlock, global_average, init_convs, projection


@pytest.mark.parametrize(("k", "channels", "groups"), [(3, 64, 1), (1, 512, 1), (3, 512, 512)])
def test_convolutions_start_normal_with_variance_two_over_k_squared_out(k, channels, groups):
    torch.manual_seed(0)
    conv = torch.nn.Conv2d(channels, channels, k, groups=groups)
    init_convs(conv)
    expected = math.sqrt(2 / (k * k * channels))
    assert conv.weight.std().item() == pytest.approx(expected, rel=0.03)
    assert conv.weight.mean().item() == pytest.approx(0, abs=0.05 * expected)
    assert torch.count_nonzero(conv.bias) == 0


def test_a_shortcut_is_the_identity_unless_the_shape_changes():
    assert projection(16, 16, 1) is None
    assert projection(16, 32, 1) is not None
    assert projection(16, 16, 2) is not None


def test_a_block_whose_branch_is_silent_is_relu_of_its_input():
    block = BasicBlock(4, 4, 1)
    torch.nn.init.zeros_(block.bn2.weight)
    x = torch.randn(2, 4, 5, 5)
    assert torch.equal(block(x), x.relu())


def test_a_block_with_stride_halves_the_image():
    assert BasicBlock(4, 8, 2)(torch.randn(2, 4, 8, 8)).shape == (2, 8, 4, 4)


def test_the_global_average_is_over_space():
    assert torch.equal(global_average(torch.ones(2, 3, 4, 5)), torch.ones(2, 3))
