"""The rules of dorefa: check values, gradients of what comes before the grid, errors per sample."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import bitcycle as bc
from bitcycle.quantizers import DoReFa

from ..toys import randn
from .rounding import assert_unbiased

W = torch.tensor([-1.0, 0.5, 2.0])
KEY = torch.tensor([1, 2], dtype=torch.int32)


def levels(bits: int) -> Tensor:
    return torch.tensor(2**bits - 1, dtype=torch.int32)


def quantize(role: str, x: Tensor, bits: int, key: Tensor | None = None, **options) -> Tensor:
    rule = DoReFa(**options)
    prepared = rule.prepare(role, x, levels(bits))
    return rule.encode(
        role, prepared, levels(bits), rule.range_of(role, prepared), key
    ).dequantize()


def test_the_check_values_of_the_specification() -> None:
    for bits, expected in ((2, [-1.0, 1 / 3, 1.0]), (8, [-0.788235, 0.482353, 1.0])):
        torch.testing.assert_close(
            quantize("weight", W, bits), torch.tensor(expected), rtol=0, atol=1e-6
        )


def test_weights_are_the_published_formula() -> None:
    for bits in (2, 3, 4, 8):
        w, n = randn(6, 5).double(), 2**bits - 1
        t = torch.tanh(w)
        expected = 2 * torch.round((t / (2 * t.abs().max()) + 0.5) * n) / n - 1
        torch.testing.assert_close(quantize("weight", w, bits), expected)
        scaled = quantize("weight", w, bits, rescale=True)
        torch.testing.assert_close(scaled, expected * t.abs().max())


def test_one_bit_is_the_sign_times_the_mean_magnitude() -> None:
    for rescale in (False, True):
        w = randn(7, 3)
        expected = torch.sign(w) * w.abs().mean()
        torch.testing.assert_close(quantize("weight", w, 1, rescale=rescale), expected)


def test_the_gradient_of_the_weight_transform_is_that_of_finite_differences() -> None:
    """The maximum is not differentiated: hold it fixed and differentiate numerically."""
    w = randn(4, 3).double()
    bound = torch.tanh(w).abs().max()
    step = 1e-6
    numeric = ((torch.tanh(w + step) - torch.tanh(w - step)) / (2 * step)) / bound
    leaf = w.clone().requires_grad_()
    DoReFa().prepare("weight", leaf, levels(4)).sum().backward()
    torch.testing.assert_close(leaf.grad, numeric, rtol=1e-7, atol=1e-9)
    leaf.grad = None
    DoReFa(rescale=True).prepare("weight", leaf, levels(4)).sum().backward()
    torch.testing.assert_close(leaf.grad, numeric * bound, rtol=1e-7, atol=1e-9)


def test_the_gradient_of_one_bit_is_straight_through() -> None:
    leaf = randn(4, 3).requires_grad_()
    DoReFa().prepare("weight", leaf, levels(1)).sum().backward()
    assert torch.equal(leaf.grad, torch.ones(4, 3))


def test_a_layer_s_weight_gradient_flows_through_tanh() -> None:
    rule = DoReFa(first_last="quantized")
    layer = bc.quantize_model(nn.Linear(3, 2, bias=False), rule, kernel="simulate")
    bc.set_precision(layer, "w4")
    x, e = randn(5, 3), randn(5, 2, seed=2)
    layer(x).backward(e)
    t = torch.tanh(layer.weight.detach())
    torch.testing.assert_close(layer.weight.grad, (e.t() @ x) * (1 - t**2) / t.abs().max())


def test_acts_are_clipped_to_0_and_1_and_pass_no_gradient_outside() -> None:
    x = torch.tensor([-0.5, 0.2, 0.5, 0.9, 3.0], requires_grad=True)
    assert quantize("act", x.detach(), 2).tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1, 1])
    DoReFa().prepare("act", x, levels(2)).sum().backward()
    assert x.grad.tolist() == [0, 1, 1, 1, 0]


def test_an_error_has_a_grid_per_sample() -> None:
    e = torch.tensor([[1.0, -0.5, 0.2], [100.0, -50.0, 20.0]])
    # 2 bits of [-m, m]: steps of 2 m / 3; -.5 is (.5 / 2) * 3 = .75 steps up, .2 is 1.8
    values = quantize("error", e, 2, error_rounding="nearest")
    expected = torch.tensor([[1.0, -1 / 3, 1 / 3], [100.0, -100 / 3, 100 / 3]])
    torch.testing.assert_close(values, expected)


def test_zeros_stay_zeros() -> None:
    for key in (None, KEY):
        zero = torch.zeros(3, 4)
        for bits in (1, 2, 8):
            assert torch.equal(quantize("weight", zero, bits), zero)
            assert torch.equal(quantize("act", zero, bits), zero)
            assert torch.equal(quantize("error", zero, bits, key), zero)
        mixed = torch.stack([torch.zeros(4), torch.ones(4)])
        assert torch.equal(quantize("error", mixed, 8, key)[0], torch.zeros(4))


def test_a_stochastic_error_is_unbiased() -> None:
    e = randn(3, 20)
    rule = DoReFa()
    within = rule.range_of("error", e)
    inner = e.abs() < within[1]
    step = (2 * within[1] / 7).expand_as(e)
    assert_unbiased(
        (e + within[1])[inner],
        step[inner],
        lambda key: (rule.encode("error", e, levels(3), within, key).dequantize() + within[1])[
            inner
        ],
    )


def test_a_nan_shows_in_the_range_of_every_role() -> None:
    x = torch.tensor([[0.5, float("nan")]])
    for role in ("weight", "act", "error"):
        low, high = DoReFa().range_of(role, x)
        assert (high - low).isnan().any()


def test_ranges_that_another_quantizer_observed_are_not_used() -> None:
    layer = bc.quantize_model(nn.Linear(3, 2), kernel="simulate")
    bc.set_precision(layer, "w8a8")
    layer(100 * randn(4, 3))
    bc.quantize_model(layer, DoReFa(first_last="quantized"), kernel="simulate")
    fresh = bc.quantize_model(nn.Linear(3, 2), DoReFa(first_last="quantized"), kernel="simulate")
    fresh.load_state_dict(bc.float_state_dict(layer))
    bc.set_precision(fresh, "w8a8")
    x = randn(4, 3)
    assert torch.equal(layer.eval()(x), fresh.eval()(x))
