"""The two products of an attention, on the grids of the layer they belong to."""

import pytest
import torch

import bitcycle as bc
from bitcycle.memory import saved_bytes
from bitcycle.nn import attention
from bitcycle.nn.attention import NUM_RANGES, attend
from bitcycle.nn.swap import converted_type
from tests import naive_attention
from tests.toys import randn


def owner(bits, num_ranges=NUM_RANGES, kernel="simulate"):
    """A converted layer with room for the ranges."""
    rules = bc.quantizers.SBM(error_rounding="nearest")
    layer = bc.quantize_model(bc.MatMul(), rules, kernel=kernel)
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


def _gradients(bits, kernel, mask, *, is_kept, monkeypatch, **options):
    """Of q, k, v and the mask; is_kept: with the weights kept for backward, as autograd does."""
    with monkeypatch.context() as patch:
        if is_kept:
            patch.setattr(attention, "product_behind", lambda output: None)
        inputs = [*operands(), *([] if mask is None else [mask])]
        q, k, v = inputs[:3]
        torch.manual_seed(0)
        output, _ = attend(owner(bits, kernel=kernel), q, k, v, mask, scale=0.5, **options)
        error = randn(*output.shape, seed=4)
        first = torch.autograd.grad(output, inputs, error, retain_graph=True)
        again = torch.autograd.grad(output, inputs, error)
    assert all(map(torch.equal, first, again))
    return first


@pytest.mark.parametrize("options", [{}, {"softcap": 1.0}, {"dropout": 0.3}], ids=str)
@pytest.mark.parametrize("has_mask", [False, True])
@pytest.mark.parametrize("bits", [4, 7])
@pytest.mark.parametrize("kernel", ["dequantize", "int8"])
def test_weights_made_again_from_codes_give_the_same_gradients(
    kernel, bits, has_mask, options, monkeypatch
):
    mask = randn(1, 3, 1, 6, seed=9).requires_grad_() if has_mask else None
    ours, theirs = (
        _gradients(bits, kernel, mask, is_kept=is_kept, monkeypatch=monkeypatch, **options)
        for is_kept in (False, True)
    )
    assert all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize("asked", [["mask"], ["v"], ["q"], ["k", "mask"]], ids=" ".join)
def test_gradients_of_some_inputs_are_those_of_all_also_before_them(asked):
    mask = randn(1, 3, 1, 6, seed=9).requires_grad_()
    inputs = dict(zip("qkv", operands(), strict=True), mask=mask)
    output, _ = attend(owner(7, kernel="int8"), *inputs.values(), scale=0.5)
    error = randn(*output.shape, seed=4)
    some = torch.autograd.grad(output, [inputs[n] for n in asked], error, retain_graph=True)
    every = dict(zip(inputs, torch.autograd.grad(output, [*inputs.values()], error), strict=True))
    for name, gradient in zip(asked, some, strict=True):
        assert torch.equal(gradient, every[name])


def test_the_product_of_scores_is_made_again_only_where_both_operands_are_kept(monkeypatch):
    made = []
    again = attention.multiply_again
    monkeypatch.setattr(attention, "multiply_again", lambda node: made.append(node) or again(node))
    q, k, v = operands()
    for layer, inputs, expected in (
        (owner(7, kernel="int8"), (q, k, v), 1),
        (owner(7, kernel="int8"), (q.detach(), k, v), 0),  # nobody reads k's codes
        (owner(7, kernel="simulate"), (q, k, v), 0),
    ):
        made.clear()
        attend(layer, *inputs, None, scale=1.0)[0].sum().backward()
        assert len(made) == expected


def test_a_codes_kernel_keeps_no_attention_weights_for_backward():
    q, k, v = (randn(1, 1, 64, 4, seed=i).requires_grad_() for i in range(3))
    weights = 4 * 64 * 64  # bytes
    kept = {
        kernel: saved_bytes(
            owner(8, kernel=kernel),
            lambda layer: attend(layer, q, k, v, None, scale=1.0)[0],
            exclude=(q, k, v),
        ).num_bytes
        for kernel in ("simulate", "int8")
    }
    assert kept["simulate"] > 2 * weights  # as a float, and put on its grid
    assert weights / 4 < kept["int8"] < weights / 2  # its codes, and those of q, k and v
