"""The three products of two activations from codes, against float64 on the same codes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bitcycle.kernels import KERNELS, MatMulGeometry

from .. import naive
from .operands import (
    assert_close,
    assert_path,
    counted,
    kinds,
    layouts,
    numbers,
    quantized,
    seeds,
    thrifty,
    widths,
)

GEOMETRY = MatMulGeometry()
sizes = st.sampled_from((1, 2, 5, 8, 17, 33))
batches = st.sampled_from(
    [((), ()), ((3,), (3,)), ((2, 3), (2, 3)), ((2, 3), ()), ((2, 3), (3,)), ((), (2,)),
     ((2, 1), (1, 3)), ((0,), (0,)), ((2, 0), ()), ((1,), (1,))]
)  # fmt: skip


@pytest.mark.parametrize("product", ["output", "grad_input", "grad_weight"])
@pytest.mark.parametrize("kernel", ["native", "simulate"])
@thrifty
@given(batches, sizes, sizes, sizes, widths, widths, widths, kinds, kinds, layouts, layouts, seeds)
def test_it_is_that_of_the_codes(
    kernel, product, batch, m, k, n, act, second, error, a_kind, b_kind, a_layout, b_layout, seed
):
    batch_a, batch_b = batch
    both = torch.broadcast_shapes(batch_a, batch_b)
    a_shape, b_shape, e_shape = (*batch_a, m, k), (*batch_b, k, n), (*both, m, n)
    a = quantized(numbers(a_shape, a_kind, seed), act, layout=a_layout)
    b = quantized(numbers(b_shape, b_kind, seed + 1), second, layout=b_layout)
    e = quantized(numbers(e_shape, "centred", seed + 2), error, layout=b_layout)
    empty = [torch.zeros(shape, dtype=torch.float64) for shape in (a_shape, b_shape, e_shape)]

    def output(x: Tensor, y: Tensor) -> Tensor:
        return naive.matmul(x, y, empty[2]).output

    def grad_input(x: Tensor, y: Tensor) -> Tensor:
        return naive.matmul(empty[0], y, x).grad_input

    def grad_weight(x: Tensor, y: Tensor) -> Tensor:
        return naive.matmul(y, empty[1], x).grad_weight

    x, y, last, reference = {
        "output": (a, b, None, output),
        "grad_input": (e, b, torch.Size(a_shape), grad_input),
        "grad_weight": (e, a, torch.Size(b_shape), grad_weight),
    }[product]
    with counted() as calls:
        actual = getattr(KERNELS[kernel].products(GEOMETRY), product)(x, y, last)
    assert_close(kernel, actual, reference, x, y)
    assert_path(kernel, calls, "gemm")


def test_a_batch_of_matrices_is_one_product_of_codes() -> None:
    a = quantized(numbers((2, 3, 4, 5), "centred", 0), (4, 4))
    b = quantized(numbers((3, 5, 6), "centred", 1), (4, 4))
    with counted() as calls:
        KERNELS["native"].products(GEOMETRY).output(a, b, None)
    assert calls == {"gemm": 1}


def test_a_batch_whose_second_operand_has_scales_per_row_is_float32() -> None:
    a = quantized(numbers((2, 4, 5), "centred", 0), (4, 4))
    b = quantized(numbers((2, 5, 6), "centred", 1), (4, 4), keep=(1,))
    with counted() as calls:
        output = KERNELS["native"].products(GEOMETRY).output(a, b, None)
    assert calls == {"float": 1}
    torch.testing.assert_close(output, a.dequantize() @ b.dequantize())
