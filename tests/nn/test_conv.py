"""Converted convolutions against the oracle."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from .layers import assert_products_close, convert, expected_products, run

BITS = range(2, 9)
INPUTS = {nn.Conv1d: (2, 4, 11), nn.Conv2d: (2, 4, 7, 6), nn.Conv3d: (2, 4, 5, 4, 6)}
SHAPES: list[tuple[type[nn.Module], dict[str, Any]]] = [
    (nn.Conv1d, {}),
    (nn.Conv1d, {"stride": 2, "padding": 2, "dilation": 2, "groups": 2}),
    (nn.Conv2d, {}),
    (nn.Conv2d, {"bias": False}),
    (nn.Conv2d, {"kernel_size": 1}),
    (nn.Conv2d, {"kernel_size": (1, 3), "stride": (2, 1), "padding": (0, 2)}),
    (nn.Conv2d, {"stride": 2, "padding": 1}),
    (nn.Conv2d, {"stride": 3, "padding": 2}),
    (nn.Conv2d, {"dilation": (2, 1), "padding": 2}),
    (nn.Conv2d, {"groups": 2, "padding": 1}),
    (nn.Conv2d, {"out_channels": 8, "groups": 4, "padding": 1}),  # depthwise, two per channel
    (nn.Conv3d, {"padding": 1}),
    (nn.Conv3d, {"kernel_size": (2, 1, 3), "stride": (1, 2, 2), "groups": 2, "bias": False}),
]


def _make(kind: type[nn.Module], options: dict[str, Any], seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return kind(4, **{"out_channels": 6, "kernel_size": 3, **options})


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(("kind", "options"), SHAPES)
def test_the_three_products_equal_the_oracle_in_training(
    kind: type[nn.Module], options: dict[str, Any], bits: int
) -> None:
    layer = convert(_make(kind, options), f"w{bits}a{bits}e{bits}")
    x = torch.randn(INPUTS[kind])
    e = torch.randn_like(layer(x))
    expected = expected_products(layer, x, e, weight=bits, act=bits, error=bits)
    assert_products_close(run(layer, x, e), expected)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("kind", INPUTS)
def test_the_three_products_equal_the_oracle_in_evaluation_on_the_running_range(
    kind: type[nn.Module], bits: int
) -> None:
    layer = convert(_make(kind, {"padding": 1}), f"w{bits}a{bits}e{bits}")
    shape = INPUTS[kind]
    layer(torch.linspace(-1.0, 0.5, math.prod(shape)).view(shape))
    layer.eval()
    x = torch.randn(shape)  # reaches beyond the range: clips
    e = torch.randn_like(layer(x))
    expected = expected_products(layer, x, e, weight=bits, act=bits, error=bits, within=(-1.0, 0.5))
    assert_products_close(run(layer, x, e), expected)


@pytest.mark.parametrize(
    ("precision", "bits"),
    [
        ("w3", {"weight": 3, "act": None, "error": None}),
        ("a3", {"weight": None, "act": 3, "error": None}),
        ("e3", {"weight": None, "act": None, "error": 3}),
        ("w2a5e8", {"weight": 2, "act": 5, "error": 8}),
        ("w8a2e3", {"weight": 8, "act": 2, "error": 3}),
        ("w16a12e20", {"weight": 16, "act": 12, "error": 20}),
        ("w4a24e32", {"weight": 4, "act": None, "error": None}),
    ],
)
def test_every_role_has_bits_of_its_own(precision: str, bits: dict[str, int | None]) -> None:
    layer = convert(_make(nn.Conv2d, {"stride": 2, "padding": 1}), precision)
    x = torch.randn(2, 4, 7, 6)
    e = torch.randn_like(layer(x))
    assert_products_close(run(layer, x, e), expected_products(layer, x, e, **bits))


def test_the_error_of_the_bias_is_not_quantized() -> None:
    layer = convert(_make(nn.Conv2d, {}), "w2a2e2")
    x = torch.randn(2, 4, 7, 6)
    e = torch.randn_like(layer(x))
    run(layer, x, e)
    assert layer.bias.grad is not None
    torch.testing.assert_close(layer.bias.grad, e.sum((0, 2, 3)))


@pytest.mark.parametrize("kind", INPUTS)
def test_an_input_without_a_batch_is_a_batch_of_one(kind: type[nn.Module]) -> None:
    layer = convert(_make(kind, {"padding": 1}), "w4a4e4")
    x = torch.randn(INPUTS[kind])[:1]
    batched, single = run(layer, x), run(layer, x[0])
    assert torch.equal(single.output, batched.output[0])
    assert torch.equal(single.grad_input, batched.grad_input[0])
    torch.testing.assert_close(single.grad_weight, batched.grad_weight)


@pytest.mark.parametrize("kind", [nn.Conv2d, nn.Conv3d])
def test_channels_last_changes_nothing_but_the_noise_and_is_kept(kind: type[nn.Module]) -> None:
    layout = torch.channels_last if kind is nn.Conv2d else torch.channels_last_3d
    turned = _make(kind, {"padding": 1}).to(memory_format=layout)
    turned = convert(turned, "w4a4e4", error_rounding="nearest")
    plain = convert(_make(kind, {"padding": 1}), "w4a4e4", error_rounding="nearest")
    x = torch.randn(INPUTS[kind])
    e = torch.randn(INPUTS[kind][0], 6, *INPUTS[kind][2:])
    result = run(turned, x.to(memory_format=layout), e.to(memory_format=layout))
    assert_products_close(result, run(plain, x, e))
    for tensor in (result.output, result.grad_input):
        assert tensor.is_contiguous(memory_format=layout)


def test_a_strided_input_and_error_change_nothing() -> None:
    layer = convert(_make(nn.Conv1d, {}), "w4a4e4")
    x = torch.randn(2, 11, 4).transpose(1, 2)
    e = torch.randn(1, 1, 9).expand(2, 6, 9)
    expected = run(layer, x.contiguous(), e.contiguous())
    assert_products_close(run(layer, x, e), expected)


def test_an_empty_batch_gives_empty_outputs_and_zero_gradients() -> None:
    layer = convert(_make(nn.Conv2d, {}), "w4a4e4")
    result = run(layer, torch.randn(0, 4, 7, 6))
    assert result.output.shape == (0, 6, 5, 4)
    assert result.grad_input.shape == (0, 4, 7, 6)
    assert not result.grad_weight.any()
    assert not layer.is_observed
