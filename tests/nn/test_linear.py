"""Converted nn.Linear against the oracle."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bitcycle as bc

from .layers import assert_products_close, convert, expected_products, run


def _make(bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(7, 5, bias=bias)


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("shape", [(7,), (1, 7), (6, 7), (2, 3, 7), (2, 3, 2, 7)])
@pytest.mark.parametrize("bias", [True, False])
def test_the_three_products_equal_the_oracle(shape: tuple[int, ...], bias: bool, bits: int) -> None:
    layer = convert(_make(bias), f"w{bits}a{bits}e{bits}")
    x = torch.randn(shape)
    e = torch.randn_like(layer(x))
    expected = expected_products(layer, x, e, weight=bits, act=bits, error=bits)
    assert_products_close(run(layer, x, e), expected)


@pytest.mark.parametrize("bits", range(2, 9))
def test_evaluation_uses_the_running_range_and_still_quantizes_the_error(bits: int) -> None:
    layer = convert(_make(), f"w{bits}a{bits}e{bits}")
    layer(torch.linspace(-1.0, 0.5, 14).view(2, 7))
    layer.eval()
    x, e = torch.randn(6, 7), torch.randn(6, 5)
    expected = expected_products(
        layer, x, e, weight=bits, act=bits, error=bits, within=(-1.0, 0.5)
    )  # fmt: skip
    assert_products_close(run(layer, x, e), expected)


def test_a_transposed_input_and_an_expanded_error_change_nothing() -> None:
    layer = convert(_make(), "w4a4e4")
    x, e = torch.randn(7, 6).t(), torch.randn(5).expand(6, 5)
    assert_products_close(run(layer, x, e), run(layer, x.contiguous(), e.contiguous()))


@pytest.mark.parametrize(("inputs", "outputs", "batch"), [(0, 3, 2), (3, 0, 2), (3, 4, 0)])
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_sizes_of_zero_work_as_in_torch(inputs: int, outputs: int, batch: int) -> None:
    float_layer = nn.Linear(inputs, outputs)
    x = torch.randn(batch, inputs)
    expected = run(float_layer, x)
    result = run(convert(float_layer, "w4a4e4"), x)
    assert result.output.shape == expected.output.shape
    assert result.grad_input.shape == expected.grad_input.shape
    assert not result.grad_weight.any()


def test_at_16_bits_the_products_are_close_to_float32() -> None:
    float_layer = _make()
    x, e = torch.randn(6, 7), torch.randn(6, 5)
    expected = run(float_layer, x, e)
    result = run(convert(float_layer, "w16a16e16"), x, e)
    # a 16-bit step is 1.5e-5 of the range; 7 terms of two such errors stay below 1e-3
    torch.testing.assert_close(result.output, expected.output, rtol=0, atol=1e-3)
    torch.testing.assert_close(result.grad_weight, expected.grad_weight, rtol=0, atol=1e-3)
    assert not torch.equal(result.output, expected.output)


def test_two_layers_in_a_row_see_each_other_s_quantized_gradients() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 6), nn.Linear(6, 5))
    for layer in model:
        convert(layer, "w4a4e4")
    x, e = torch.randn(3, 7, requires_grad=True), torch.randn(3, 5)
    model(x).backward(e)
    bits = {"weight": 4, "act": 4, "error": 4}
    hidden = expected_products(model[0], x.detach(), torch.zeros(3, 6), **bits).output.float()
    second = expected_products(model[1], hidden, e, **bits)
    first = expected_products(model[0], x.detach(), second.grad_input.float(), **bits)
    torch.testing.assert_close(model[1].weight.grad, second.grad_weight.float())
    torch.testing.assert_close(model[0].weight.grad, first.grad_weight.float())
    torch.testing.assert_close(x.grad, first.grad_input.float())
    assert bc.get_precision(model) == bc.Precision(weight=4, act=4, error=4)
