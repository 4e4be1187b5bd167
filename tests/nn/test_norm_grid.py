"""Fixed-point BatchNorm: each quantity on its grid, straight-through gradients, a rounded error."""

from __future__ import annotations

import torch

from bitcycle.quantizers import WAGEUBN
from bitcycle.quantizers.wageubn import activation_error

from ..toys import randn
from .norms import Normed, convert

RULES = WAGEUBN(first_last="quantized")
SHAPE = (1, 3, 1, 1)


def q(x: torch.Tensor, bits: int) -> torch.Tensor:
    return torch.round(x * 2 ** (bits - 1)) / 2 ** (bits - 1)


def test_the_output_is_the_formula_s_at_8_bits() -> None:
    model = Normed()
    norm = convert(model, RULES)
    x = 2 * randn(4, 3, 4, 2) + 1
    var, mean = torch.var_mean(x, (0, 2, 3), correction=0)
    normal = q((x - q(mean, 16).view(SHAPE)) / q((var + 1e-5).sqrt(), 16).view(SHAPE), 8)
    expected = q(norm.weight, 8).view(SHAPE) * normal + q(norm.bias, 8).view(SHAPE)
    assert torch.equal(model(x), expected)
    # evaluation: the same with running statistics, which move as a float BatchNorm's
    fresh = Normed()
    fresh(x)
    torch.testing.assert_close(norm.running_mean, fresh.norm.running_mean)
    torch.testing.assert_close(norm.running_var, fresh.norm.running_var)
    mean, std = q(norm.running_mean, 16), q((norm.running_var + 1e-5).sqrt(), 16)
    normal = q((x - mean.view(SHAPE)) / std.view(SHAPE), 8)
    expected = q(norm.weight, 8).view(SHAPE) * normal + q(norm.bias, 8).view(SHAPE)
    assert torch.equal(model.eval()(x), expected)


def test_bits_of_a_role_touch_only_its_quantities() -> None:
    x = randn(4, 3, 4, 2)
    float_output = Normed()(x)
    by_weight, by_act = Normed(), Normed()
    norm = convert(by_weight, RULES, "w3")
    convert(by_act, RULES, "a3")
    plain = (float_output - Normed().norm.bias.view(SHAPE)) / Normed().norm.weight.view(SHAPE)
    expected = plain * q(norm.weight, 3).view(SHAPE) + q(norm.bias, 3).view(SHAPE)
    torch.testing.assert_close(by_weight(x), expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(by_act(x), float_output, atol=1e-3)


def test_the_arriving_error_is_rounded_and_the_rest_is_straight_through() -> None:
    x, e = randn(4, 3, 4, 2), randn(4, 3, 4, 2, seed=2)
    model, theirs = Normed(), Normed()
    norm = convert(model, RULES, "e4")
    model(x).backward(e)
    rounded = activation_error(e, torch.tensor(15), e.abs().max())
    theirs(x).backward(rounded)
    torch.testing.assert_close(norm.weight.grad, theirs.norm.weight.grad)
    torch.testing.assert_close(norm.bias.grad, theirs.norm.bias.grad)

    leaf, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    model, theirs = Normed(), Normed()
    convert(model, RULES, "w16a16")  # fine grids: close to the float gradient
    model(leaf).backward(e)
    theirs(other).backward(e)
    torch.testing.assert_close(leaf.grad, other.grad, rtol=1e-2, atol=1e-3)


def test_a_constant_channel_stays_finite_at_every_width() -> None:
    for bits in (2, 4, 8):
        model = Normed(eps=1e-12)
        convert(model, RULES, f"FW{bits}/BW{bits}")
        x = torch.full((4, 3, 4, 2), 0.3, requires_grad=True)
        output = model(x)
        output.sum().backward()
        assert output.isfinite().all()
        assert x.grad.isfinite().all()
