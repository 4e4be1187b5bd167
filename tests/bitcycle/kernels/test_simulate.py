"""`simulate` multiplies values, or the values of codes, and nothing else."""

from __future__ import annotations

import pytest
import torch

from bitcycle.kernels import KERNELS, ConvGeometry, LinearGeometry
from bitcycle.quantizers.base import Quantized

from .operands import numbers, quantized

SIMULATE = KERNELS["simulate"]
PRODUCTS = SIMULATE.products(LinearGeometry())


def _codes(codes: list[list[int]], scale: float, offset: float) -> Quantized:
    return Quantized(
        codes=torch.tensor(codes), scale=torch.tensor(scale), offset=torch.tensor(offset)
    )


def test_the_output_is_the_product_of_the_values() -> None:
    a = _codes([[0, 1, 3]], 0.5, -1.0)  # -1, -.5, .5
    w = _codes([[2, 0, 1], [1, 1, 1]], 1.0, 0.0)
    output = PRODUCTS.output(a, w, torch.tensor([10.0, 0.0]))
    assert output.tolist() == [[10.0 - 2.0 + 0.5, -1.0]]


def test_grad_input_is_error_times_weight() -> None:
    e = _codes([[1, 2]], 1.0, 0.0)
    w = _codes([[2, 0, 1], [1, 1, 1]], 1.0, 0.0)
    grad = PRODUCTS.grad_input(e, w, torch.Size([1, 3]))
    assert grad.tolist() == [[4.0, 2.0, 3.0]]


def test_grad_weight_is_error_times_act() -> None:
    e = _codes([[1, 2], [0, 1]], 1.0, 0.0)
    a = _codes([[0, 1, 3], [1, 1, 1]], 1.0, 0.0)
    grad = PRODUCTS.grad_weight(e, a, torch.Size([2, 3]))
    assert grad.tolist() == [[0.0, 1.0, 3.0], [1.0, 3.0, 7.0]]


def test_operands_without_a_grid_are_multiplied_as_they_are() -> None:
    torch.manual_seed(0)
    a, w = torch.randn(4, 3), torch.randn(2, 3)
    output = PRODUCTS.output(Quantized(values=a), Quantized(values=w), None)
    assert torch.equal(output, torch.nn.functional.linear(a, w))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_codes_meet_half_precision_values_in_float32(dtype: torch.dtype) -> None:
    codes, bias = _codes([[0, 1, 3]], 0.1, -1.0), torch.tensor([0.5], dtype=dtype)
    w = torch.tensor([[1.0, -2.0, 0.5]], dtype=dtype)
    values = Quantized(values=w)
    output = PRODUCTS.output(codes, values, bias)
    assert torch.equal(
        output, torch.nn.functional.linear(codes.dequantize(), w.float(), bias.float())
    )
    grad = PRODUCTS.grad_weight(Quantized(values=bias.view(1, 1)), codes, torch.Size([1, 3]))
    assert torch.equal(grad, 0.5 * codes.dequantize())


def test_values_of_two_dtypes_are_torch_s_error() -> None:
    a, w = Quantized(values=torch.ones(1, 3)), Quantized(values=torch.ones(2, 3).double())
    with pytest.raises(RuntimeError, match="same dtype"):
        PRODUCTS.output(a, w, None)


def test_products_of_codes_are_those_of_their_values_to_the_last_bit() -> None:
    a = quantized(numbers((7, 5), "centred", 0), (5, 8))
    w = quantized(numbers((3, 5), "below", 1), (5, 8), keep=(0,))
    e = quantized(numbers((7, 3), "tiny", 2), (5, 8))
    values = [Quantized(values=q.dequantize()) for q in (a, w, e)]
    pairs = [
        (PRODUCTS.output(a, w, None), PRODUCTS.output(*values[:2], None)),
        (
            PRODUCTS.grad_input(e, w, torch.Size((7, 5))),
            PRODUCTS.grad_input(values[2], values[1], torch.Size((7, 5))),
        ),
        (
            PRODUCTS.grad_weight(e, a, torch.Size((3, 5))),
            PRODUCTS.grad_weight(values[2], values[0], torch.Size((3, 5))),
        ),
    ]
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


def test_channels_last_codes_give_a_channels_last_output() -> None:
    geometry = ConvGeometry((1, 1), (1, 1), (1, 1), 1)
    a = quantized(numbers((2, 8, 6, 5), "centred", 0), (4, 4), layout="channels_last")
    w = quantized(numbers((4, 8, 3, 3), "centred", 1), (4, 4), keep=(0,))
    output = SIMULATE.products(geometry).output(a, w, None)
    assert output.is_contiguous(memory_format=torch.channels_last)
