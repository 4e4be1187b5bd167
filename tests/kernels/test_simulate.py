"""`simulate` multiplies the values of the codes and nothing else."""

from __future__ import annotations

import pytest
import torch

from bitcycle.kernels import KERNELS, LinearGeometry
from bitcycle.quantizers.base import Quantized

SIMULATE = KERNELS["simulate"]
GEOMETRY = LinearGeometry()


def _codes(codes: list[list[int]], scale: float, offset: float) -> Quantized:
    return Quantized(
        codes=torch.tensor(codes), scale=torch.tensor(scale), offset=torch.tensor(offset)
    )


def test_the_output_is_the_product_of_the_values() -> None:
    a = _codes([[0, 1, 3]], 0.5, -1.0)  # -1, -.5, .5
    w = _codes([[2, 0, 1], [1, 1, 1]], 1.0, 0.0)
    output = SIMULATE.output(GEOMETRY, a, w, torch.tensor([10.0, 0.0]))
    assert output.tolist() == [[10.0 - 2.0 + 0.5, -1.0]]


def test_grad_input_is_error_times_weight() -> None:
    e = _codes([[1, 2]], 1.0, 0.0)
    w = _codes([[2, 0, 1], [1, 1, 1]], 1.0, 0.0)
    grad = SIMULATE.grad_input(GEOMETRY, e, w, torch.Size([1, 3]))
    assert grad.tolist() == [[4.0, 2.0, 3.0]]


def test_grad_weight_is_error_times_act() -> None:
    e = _codes([[1, 2], [0, 1]], 1.0, 0.0)
    a = _codes([[0, 1, 3], [1, 1, 1]], 1.0, 0.0)
    grad = SIMULATE.grad_weight(GEOMETRY, e, a, torch.Size([2, 3]))
    assert grad.tolist() == [[0.0, 1.0, 3.0], [1.0, 3.0, 7.0]]


def test_operands_without_a_grid_are_multiplied_as_they_are() -> None:
    torch.manual_seed(0)
    a, w = torch.randn(4, 3), torch.randn(2, 3)
    output = SIMULATE.output(GEOMETRY, Quantized(values=a), Quantized(values=w), None)
    assert torch.equal(output, torch.nn.functional.linear(a, w))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_codes_meet_half_precision_values_in_float32(dtype: torch.dtype) -> None:
    codes, bias = _codes([[0, 1, 3]], 0.1, -1.0), torch.tensor([0.5], dtype=dtype)
    w = torch.tensor([[1.0, -2.0, 0.5]], dtype=dtype)
    values = Quantized(values=w)
    output = SIMULATE.output(GEOMETRY, codes, values, bias)
    assert torch.equal(
        output, torch.nn.functional.linear(codes.dequantize(), w.float(), bias.float())
    )
    grad = SIMULATE.grad_weight(
        GEOMETRY, Quantized(values=bias.view(1, 1)), codes, torch.Size([1, 3])
    )
    assert torch.equal(grad, 0.5 * codes.dequantize())


def test_values_of_two_dtypes_are_torch_s_error() -> None:
    a, w = Quantized(values=torch.ones(1, 3)), Quantized(values=torch.ones(2, 3).double())
    with pytest.raises(RuntimeError, match="same dtype"):
        SIMULATE.output(GEOMETRY, a, w, None)
