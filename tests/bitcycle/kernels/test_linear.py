"""The three products of a linear layer from codes, against float64 on the same codes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bitcycle.kernels import KERNELS, LinearGeometry

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

GEOMETRY = LinearGeometry()
sizes = st.sampled_from((1, 2, 3, 8, 17, 33, 64, 65))
batches = st.sampled_from(((), (0,), (1,), (2,), (7,), (33,), (2, 0), (3, 5), (1, 1, 2)))
zeros = st.sampled_from(("real", "integer"))


def output(a: Tensor, w: Tensor) -> Tensor:
    return torch.einsum("...i,oi->...o", a, w)


def grad_input(e: Tensor, w: Tensor) -> Tensor:
    return torch.einsum("...o,oi->...i", e, w)


def grad_weight(e: Tensor, a: Tensor) -> Tensor:
    return torch.einsum("no,ni->oi", e.reshape(-1, e.shape[-1]), a.reshape(-1, a.shape[-1]))


@pytest.mark.parametrize("kernel", ["native", "simulate"])
@thrifty
@given(batches, sizes, sizes, widths, widths, kinds, kinds, layouts, zeros, st.booleans(), seeds)
def test_the_output_is_that_of_the_codes(
    kernel, batch, inner, outer, act, weight, a_kind, w_kind, layout, zero, has_bias, seed
):
    a = quantized(numbers((*batch, inner), a_kind, seed), act, layout=layout, zero=zero)
    w = quantized(
        numbers((outer, inner), w_kind, seed + 1), weight,
        keep=(0,) if seed % 2 else (), layout=layout, zero=zero,
    )  # fmt: skip
    bias = numbers((outer,), "centred", seed + 2) if has_bias else None
    with counted() as calls:
        actual = KERNELS[kernel].products(GEOMETRY).output(a, w, bias)
    assert_close(kernel, actual, output, a, w, bias)
    assert_path(kernel, calls, "gemm")


@pytest.mark.parametrize("kernel", ["native", "simulate"])
@pytest.mark.parametrize("keep", [(), (0,), (1,)])
@thrifty
@given(batches, sizes, sizes, widths, widths, kinds, kinds, layouts, seeds)
def test_grad_input_is_that_of_the_codes(
    kernel, keep, batch, inner, outer, error, weight, e_kind, w_kind, layout, seed
):
    e = quantized(numbers((*batch, outer), e_kind, seed), error, layout=layout)
    w = quantized(numbers((outer, inner), w_kind, seed + 1), weight, keep=keep, layout=layout)
    with counted() as calls:
        actual = KERNELS[kernel].products(GEOMETRY).grad_input(e, w, torch.Size((*batch, inner)))
    is_folded = keep == (0,) and outer > 1  # the scales lie on the summed axis
    assert_close(kernel, actual, grad_input, e, w, is_folded=is_folded)
    assert_path(kernel, calls, "gemm_folded" if is_folded else "gemm")


@pytest.mark.parametrize("kernel", ["native", "simulate"])
@thrifty
@given(batches, sizes, sizes, widths, widths, kinds, kinds, layouts, seeds)
def test_grad_weight_is_that_of_the_codes(
    kernel, batch, inner, outer, error, act, e_kind, a_kind, layout, seed
):
    e = quantized(numbers((*batch, outer), e_kind, seed), error, layout=layout)
    a = quantized(numbers((*batch, inner), a_kind, seed + 1), act, layout=layout)
    with counted() as calls:
        actual = KERNELS[kernel].products(GEOMETRY).grad_weight(e, a, torch.Size((outer, inner)))
    assert_close(kernel, actual, grad_weight, e, a)
    assert_path(kernel, calls, "gemm")


@pytest.mark.parametrize("kernel", ["native", "simulate"])
@thrifty
@given(batches, sizes, sizes, widths, widths, kinds, layouts, st.booleans(), seeds)
def test_inputs_with_a_scale_per_row_are_multiplied_as_codes(
    kernel, batch, inner, outer, act, weight, kind, layout, has_bias, seed
):
    """The features of graph layers: exact in the output, folded in grad_weight."""
    keep = tuple(range(len(batch)))
    a = quantized(numbers((*batch, inner), kind, seed), act, keep=keep, layout=layout)
    w = quantized(
        numbers((outer, inner), "centred", seed + 1), weight, keep=(0,) if seed % 2 else ()
    )
    bias = numbers((outer,), "centred", seed + 2) if has_bias else None
    products = KERNELS[kernel].products(GEOMETRY)
    with counted() as calls:
        actual = products.output(a, w, bias)
    assert_close(kernel, actual, output, a, w, bias)
    if 0 not in batch:
        assert_path(kernel, calls, "gemm")
    e = quantized(numbers((*batch, outer), "centred", seed + 3), (8, 8), layout=layout)
    assert a.scale is not None
    is_folded = a.scale.numel() > 1
    with counted() as calls:
        actual = products.grad_weight(e, a, torch.Size((outer, inner)))
    assert_close(kernel, actual, grad_weight, e, a, is_folded=is_folded)
    if 0 not in batch:
        assert_path(kernel, calls, "gemm_folded" if is_folded else "gemm")


@pytest.mark.parametrize("kernel", ["native", "simulate"])
@thrifty
@given(batches, sizes, sizes, widths, widths, kinds, layouts, st.booleans(), seeds)
def test_errors_with_a_scale_per_sample_are_multiplied_as_codes(
    kernel, batch, inner, outer, error, act, kind, layout, is_act_per_row, seed
):
    """dorefa's errors; with `is_act_per_row` those of a recurrent layer, and its inputs."""
    keep = tuple(range(len(batch)))
    e = quantized(numbers((*batch, outer), kind, seed), error, keep=keep, layout=layout)
    a_keep = keep if is_act_per_row else ()
    a = quantized(numbers((*batch, inner), "centred", seed + 1), act, keep=a_keep, layout=layout)
    w = quantized(numbers((outer, inner), "centred", seed + 2), (8, 8))
    assert e.scale is not None
    with counted() as calls:
        actual = KERNELS[kernel].products(GEOMETRY).grad_weight(e, a, torch.Size((outer, inner)))
    is_folded = e.scale.numel() > 1
    assert_close(kernel, actual, grad_weight, e, a, is_folded=is_folded)
    if 0 not in batch:
        assert_path(kernel, calls, "gemm_folded" if is_folded else "gemm")
    with counted() as calls:
        actual = KERNELS[kernel].products(GEOMETRY).grad_input(e, w, torch.Size((*batch, inner)))
    assert_close(kernel, actual, grad_input, e, w)
    if 0 not in batch:
        assert_path(kernel, calls, "gemm")
