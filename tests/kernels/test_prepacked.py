"""A prepacked weight gives the products of the kernel itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bitcycle.kernels import KERNELS, LinearGeometry, make_kernel
from bitcycle.kernels.prepacked import prepack_grad_input, prepack_output
from bitcycle.quantizers import SBM
from bitcycle.quantizers.base import Quantized

GEOMETRY = LinearGeometry()
NAMES = [*KERNELS.names(), "int8/bf16/int8"]


def _operand(x: Tensor, role: str, kernel: str, keep: tuple[int, ...] = ()) -> Quantized:
    rules, takes_codes = SBM(), make_kernel(kernel).takes_codes
    carrier = (torch.int8 if role == "weight" else torch.uint8) if takes_codes else None
    within = rules.range_of(role, x, keep)
    q = rules.encode(role, x, torch.tensor(127), within, carrier=carrier)
    return Quantized(q.scale, q.offset, q.values, q.codes, q.half, top=7)


@pytest.mark.parametrize("name", NAMES)
def test_both_products_equal_the_kernel_called_anew(name: str) -> None:
    for keep in ((0,), (1,), ()):
        for has_bias in (True, False):
            torch.manual_seed(0)
            kernel = make_kernel(name)
            w = _operand(torch.randn(12, 9), "weight", name, keep)
            bias = torch.randn(12) if has_bias else None
            output, grad_input = prepack_output(kernel, w, bias), prepack_grad_input(kernel, w)
            for num_rows in (4, 1, 6):  # sequences end, so later steps have other sizes
                x = _operand(torch.randn(num_rows, 9) + 1, "act", name)
                e = _operand(torch.randn(num_rows, 12), "act", name)
                expected = kernel.output(GEOMETRY, x, w, bias)
                torch.testing.assert_close(output(x), expected, rtol=1e-5, atol=1e-5)
                expected = kernel.grad_input(GEOMETRY, e, w, torch.Size((num_rows, 9)))
                torch.testing.assert_close(grad_input(e), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_float_input_or_error_meets_the_values_of_the_weight(name: str) -> None:
    torch.manual_seed(0)
    kernel, w = make_kernel(name), _operand(torch.randn(12, 9), "weight", name, (0,))
    x, e = torch.randn(4, 9), torch.randn(4, 12)
    values = w.dequantize()
    torch.testing.assert_close(prepack_output(kernel, w, None)(Quantized(values=x)), x @ values.t())
    torch.testing.assert_close(prepack_grad_input(kernel, w)(Quantized(values=e)), e @ values)
