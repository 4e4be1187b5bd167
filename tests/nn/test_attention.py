"""The two products of an attention, on the grids of the layer they belong to."""

import pytest
import torch

import bitcycle as bc
from bitcycle.nn.attention import NUM_RANGES, attend
from bitcycle.nn.base import converted_type
from tests import naive_attention
from tests.toys import randn


def owner(bits, num_ranges=NUM_RANGES):
    """A converted layer with room for the ranges."""
    layer = bc.quantize_model(bc.MatMul(), bc.quantizers.SBM(error_rounding="nearest"))
    layer.act_range = torch.zeros(num_ranges, 3)
    bc.set_precision(layer, f"a{bits}e{bits}")
    assert type(layer) is converted_type(bc.MatMul)
    return layer


def operands():
    return [randn(2, 3, n, 4, seed=i).requires_grad_() for i, n in enumerate((5, 6, 6))]


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_output_and_gradients_are_those_of_the_oracle(bits):
    q, k, v = operands()
    hidden = torch.zeros(5, 6, dtype=torch.bool)
    hidden[1, 2:] = True
    mask = torch.zeros(5, 6).masked_fill(hidden, -torch.inf)
    ours, weights = attend(owner(bits), q, k, v, mask, scale=0.5)
    theirs, shares = naive_attention.attention(q, k, v, hidden, 0.5, bits)
    assert torch.allclose(weights, shares, atol=1e-6)
    error = randn(*ours.shape, seed=4)
    for a, b in zip(
        [ours, *torch.autograd.grad(ours, (q, k, v), error)],
        [theirs, *torch.autograd.grad(theirs, (q, k, v), error)],
        strict=True,
    ):
        assert torch.allclose(a, b, atol=1e-5 * b.abs().max().item())


def test_a_cap_bounds_the_scores_before_the_mask():
    q, k, v = (10 * x.detach() for x in operands())
    mask = torch.zeros(5, 6)
    mask[:, 3:] = -torch.inf
    _, weights = attend(owner(8), q, k, v, mask, scale=1.0, softcap=1.0)
    assert not weights[..., 3:].any()
    assert weights[..., :3].min() >= 1 / (1 + 2 * torch.e**2) - 1e-6  # scores within -1 and 1


def test_ranges_are_kept_from_the_given_row_on():
    layer = owner(4, num_ranges=2 + NUM_RANGES)
    q, k, v = operands()
    attend(layer, q, k, v, None, scale=1.0, act_row=2)
    assert layer.act_range[:, 0].tolist() == [0, 0, 1, 1, 1, 1]
    assert layer.act_range[5, 1] == v.min()
