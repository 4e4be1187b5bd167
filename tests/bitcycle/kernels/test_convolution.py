"""The three products of a convolution from codes, against float64 on the same codes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from bitcycle.kernels import KERNELS, ConvGeometry
from bitcycle.quantizers.base import Quantized

from .operands import (
    assert_close,
    assert_path,
    counted,
    exact,
    kinds,
    layouts,
    naive_conv,
    numbers,
    quantized,
    seeds,
    thrifty,
    widths,
)

KERNEL_NAMES = ["native", "simulate"]
thriftier = settings(thrifty, max_examples=25)  # the oracle is slow


@dataclass(frozen=True)
class Case:
    """A geometry and the shapes of its operands."""

    geometry: ConvGeometry
    input: tuple[int, ...]
    weight: tuple[int, ...]
    output: tuple[int, ...]

    def path(self, product: str) -> str:
        """The function of the library that forms this product."""
        return "float" if self.geometry.num_dims == 3 else product

    def error(self, width: tuple[int, int], kind: str, layout: str, seed: int) -> Quantized:
        return quantized(numbers(self.output, kind, seed), width, layout=layout)

    def act(self, width: tuple[int, int], kind: str, layout: str, seed: int) -> Quantized:
        return quantized(numbers(self.input, kind, seed), width, layout=layout)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """1 to 3 dimensions, any stride, dilation, padding (of either end), groups and batch."""
    num_dims = draw(st.sampled_from((1, 2, 2, 2, 3)))
    groups = draw(st.sampled_from((1, 1, 1, 2, 3)))

    def each(*choices: int) -> tuple[int, ...]:
        return tuple(draw(st.sampled_from(choices)) for _ in range(num_dims))

    geometry = ConvGeometry(
        stride=each(1, 1, 1, 2, 3),
        padding=each(0, 1, 1, 2),
        dilation=each(1, 1, 2),
        groups=groups,
        end_padding=draw(st.sampled_from(((), each(0, 1)))),
    )
    kernel, space = each(1, 2, 3), each(4, 5, 7, 8)
    batch = draw(st.sampled_from((0, 1, 2, 3)))
    rows, columns = draw(st.sampled_from((1, 2, 5, 9))), draw(st.sampled_from((1, 3, 4, 16)))
    a_shape, w_shape = (batch, groups * columns, *space), (groups * rows, columns, *kernel)
    a, w = torch.empty(a_shape, device="meta"), torch.empty(w_shape, device="meta")
    reaches = [
        n + 2 * p > d * (k - 1)
        for n, p, d, k in zip(space, geometry.padding, geometry.dilation, kernel, strict=True)
    ]
    assume(all(reaches))
    return Case(geometry, a_shape, w_shape, tuple(geometry.output(a, w, None).shape))


@pytest.mark.parametrize("kernel", KERNEL_NAMES)
@thriftier
@given(cases(), widths, widths, kinds, kinds, layouts, st.booleans(), st.booleans(), seeds)
def test_the_output_is_that_of_the_codes(
    kernel, case, act, weight, a_kind, w_kind, layout, is_per_channel, has_bias, seed
):
    a = case.act(act, a_kind, layout, seed)
    keep = (0,) if is_per_channel else ()
    w = quantized(numbers(case.weight, w_kind, seed + 1), weight, keep=keep, layout=layout)
    bias = numbers(case.weight[:1], "centred", seed + 2) if has_bias else None
    oracle = naive_conv(case.geometry)
    zero = torch.zeros(case.output, dtype=torch.float64)

    def conv(x: Tensor, y: Tensor) -> Tensor:
        return oracle.products(x, y, None, zero).output

    with counted() as calls:
        actual = KERNELS[kernel].products(case.geometry).output(a, w, bias)
    assert_close(kernel, actual, conv, a, w, bias)
    assert_path(kernel, calls, case.path("conv_output"))


@pytest.mark.parametrize("kernel", KERNEL_NAMES)
@pytest.mark.parametrize("keep", [(), (0,), (1,)])
@thriftier
@given(cases(), widths, widths, kinds, kinds, layouts, seeds)
def test_grad_input_is_that_of_the_codes(
    kernel, keep, case, error, weight, e_kind, w_kind, layout, seed
):
    e = case.error(error, e_kind, layout, seed)
    w = quantized(numbers(case.weight, w_kind, seed + 1), weight, keep=keep, layout=layout)
    oracle = naive_conv(case.geometry)
    zero = torch.zeros(case.input, dtype=torch.float64)

    def conv(x: Tensor, y: Tensor) -> Tensor:
        return oracle.products(zero, y, None, x).grad_input

    with counted() as calls:
        actual = KERNELS[kernel].products(case.geometry).grad_input(e, w, torch.Size(case.input))
    is_turned = keep == (1,) and case.weight[1] > 1  # one scale per input channel
    assert_close(kernel, actual, conv, e, w, is_folded=not is_turned)
    is_exact = set(case.geometry.stride) == {1} and case.geometry.groups == 1
    turned = case.path("conv_output") if is_exact else "float"
    assert_path(kernel, calls, turned if is_turned else case.path("conv_grad_input"))


@pytest.mark.parametrize("kernel", KERNEL_NAMES)
@thriftier
@given(cases(), widths, widths, kinds, kinds, layouts, seeds)
def test_grad_weight_is_that_of_the_codes(kernel, case, error, act, e_kind, a_kind, layout, seed):
    e, a = case.error(error, e_kind, layout, seed), case.act(act, a_kind, layout, seed + 1)
    oracle = naive_conv(case.geometry)
    zero = torch.zeros(case.weight, dtype=torch.float64)

    def conv(x: Tensor, y: Tensor) -> Tensor:
        return oracle.products(y, zero, None, x).grad_weight

    with counted() as calls:
        actual = KERNELS[kernel].products(case.geometry).grad_weight(e, a, torch.Size(case.weight))
    assert_close(kernel, actual, conv, e, a)
    assert_path(kernel, calls, case.path("conv_grad_weight"))


@pytest.mark.parametrize("num_dims", [1, 2, 3])
@pytest.mark.parametrize("kernel", KERNEL_NAMES)
def test_a_transposed_convolution_is_float32(kernel: str, num_dims: int) -> None:
    twos = (2,) * num_dims
    geometry = ConvGeometry(twos, (1,) * num_dims, (1,) * num_dims, 1, transposed=True)
    space = (5, 4, 6)[:num_dims]
    a = quantized(numbers((2, 3, *space), "centred", 0), (4, 4))
    w = quantized(numbers((3, 4, *[3] * num_dims), "above", 1), (4, 4))
    e_shape = (2, 4, *(2 * n - 1 for n in space))
    e = quantized(numbers(e_shape, "below", 2), (4, 4))
    with counted() as calls:
        by_kernel = KERNELS[kernel].products(geometry)
        actual = [
            by_kernel.output(a, w, None),
            by_kernel.grad_input(e, w, torch.Size((2, 3, *space))),
            by_kernel.grad_weight(e, a, torch.Size((3, 4, *[3] * num_dims))),
        ]
    assert calls == ({"float": 3} if kernel == "native" else {})
    oracle = naive_conv(geometry)
    values = [q.dequantize().double() for q in (a, w, e)]
    products = oracle.products(values[0], values[1], None, values[2])
    for ours, theirs in zip(
        actual, (products.output, products.grad_input, products.grad_weight), strict=True
    ):
        bound = 1e-5 * float(theirs.abs().max())
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=bound)


@pytest.mark.parametrize("kernel", KERNEL_NAMES)
def test_an_even_kernel_s_same_padding_is_the_value_0_at_the_end(kernel: str) -> None:
    # all values are 3 and all weights 2: the sums count the taps that lie on the image
    geometry = ConvGeometry((1,), (0,), (1,), 1, end_padding=(1,))
    a = quantized(torch.full((1, 1, 4), 3.0), (4, 4))
    w = quantized(torch.full((1, 1, 2), 2.0), (4, 4), keep=(0,))
    products = KERNELS[kernel].products(geometry)
    assert products.output(a, w, None).tolist() == [[[12.0, 12.0, 12.0, 6.0]]]
    e = quantized(torch.ones(1, 1, 4), (4, 4))
    grad = products.grad_input(e, w, torch.Size((1, 1, 4)))
    assert grad.tolist() == [[[2.0, 4.0, 4.0, 4.0]]]
    grad = products.grad_weight(e, a, torch.Size((1, 1, 2)))
    assert grad.tolist() == [[[12.0, 9.0]]]


@pytest.mark.parametrize("product", ["output", "grad_input"])
@pytest.mark.parametrize("kernel", ["native", "simulate"])
def test_channels_last_codes_give_a_channels_last_result(kernel: str, product: str) -> None:
    geometry = ConvGeometry((1, 1), (1, 1), (1, 1), 1)
    x = quantized(numbers((2, 4, 6, 5), "centred", 0), (4, 4), layout="channels_last")
    w = quantized(numbers((4, 4, 3, 3), "centred", 1), (4, 4))
    last = None if product == "output" else torch.Size((2, 4, 6, 5))
    with counted() as calls:
        result = getattr(KERNELS[kernel].products(geometry), product)(x, w, last)
    assert not calls["float"]
    assert result.is_contiguous(memory_format=torch.channels_last)


def test_an_error_with_a_scale_per_sample_is_multiplied_from_codes() -> None:
    geometry = ConvGeometry((2, 1), (1, 1), (1, 1), 1)
    e = quantized(numbers((3, 5, 4, 6), "below", 0), (6, 8), keep=(0,))
    w = quantized(numbers((5, 4, 3, 3), "centred", 1), (6, 8), keep=(0,))
    a = quantized(numbers((3, 4, 7, 6), "centred", 2), (6, 8))
    products = KERNELS["native"].products(geometry)
    with counted() as calls:
        grad_input = products.grad_input(e, w, torch.Size((3, 4, 7, 6)))
        grad_weight = products.grad_weight(e, a, torch.Size((5, 4, 3, 3)))
    assert calls == {"conv_grad_input": 1, "float": 1}
    oracle = naive_conv(geometry)
    expected = oracle.products(*(q.dequantize().double() for q in (a, w)), None, exact(e))
    for ours, theirs in (
        (grad_input, expected.grad_input),
        (grad_weight, expected.grad_weight),
    ):
        assert float((ours - theirs).norm() / theirs.norm()) < 2.0**-14


@pytest.mark.parametrize("product", ["output", "grad_input"])
@pytest.mark.parametrize("kernel", ["native", "simulate"])
def test_contiguous_codes_give_a_contiguous_result(kernel: str, product: str) -> None:
    for num_dims in (1, 2):
        ones = (1,) * num_dims
        geometry, space = ConvGeometry(ones, ones, ones, 1), (6, 5)[:num_dims]
        x = quantized(numbers((2, 4, *space), "centred", 0), (4, 4))
        w = quantized(numbers((4, 4, *[3] * num_dims), "centred", 1), (4, 4))
        last = None if product == "output" else torch.Size((2, 4, *space))
        result = getattr(KERNELS[kernel].products(geometry), product)(x, w, last)
        assert result.is_contiguous()
