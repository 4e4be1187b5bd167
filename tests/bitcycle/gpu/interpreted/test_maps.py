"""Convolutions of centred codes, against float64 on the same codes."""

import math
from unittest import mock

import pytest
import torch

from bitcycle.kernels import KERNELS, ConvGeometry, convolutions
from bitcycle.ops.layout import memory_layout
from bitcycle.quantizers import SBM
from bitcycle.quantizers.absmax import AbsMax
from bitcycle.quantizers.base import Quantized
from bitcycle.quantizers.pow2 import PowerOfTwo
from tests.bitcycle.kernels.operands import exact, naive_conv, numbers, quantized

# a result is rounded to bfloat16 once: 2^-8 of itself; the rest is exact to float32
BFLOAT16 = 2.0**-8
FLOAT32 = 2.0**-17

GEOMETRIES = {
    "plain": (ConvGeometry((1, 1), (0, 0), (1, 1), 1), (2, 5, 6, 7), (4, 5, 3, 2)),
    "padded": (ConvGeometry((1, 1), (1, 2), (1, 1), 1), (2, 5, 6, 7), (3, 5, 3, 3)),
    "strided": (ConvGeometry((2, 3), (1, 1), (1, 2), 1), (3, 4, 9, 8), (6, 4, 3, 2)),
    "same, even": (
        ConvGeometry((1, 1), (0, 1), (1, 1), 1, end_padding=(1, 0)), (2, 3, 5, 6), (4, 3, 2, 3)
    ),
    "points": (ConvGeometry((1, 1), (0, 0), (1, 1), 1), (2, 70, 3, 3), (9, 70, 1, 1)),
    "1 dimension": (ConvGeometry((2,), (2,), (2,), 1), (3, 4, 11), (5, 4, 3)),
    "3 dimensions": (
        ConvGeometry((1, 2, 1), (1, 0, 1), (1, 1, 1), 1), (2, 3, 4, 5, 4), (4, 3, 2, 2, 3)
    ),
}  # fmt: skip


def products_of(geometry, a, w, e):
    """The three products in float64."""
    return naive_conv(geometry).products(exact(a), exact(w), None, exact(e))


def assert_near(found, expected, terms):
    assert found.shape == expected.shape
    assert found.dtype == torch.float32
    error = (found.double() - expected).abs()
    assert (error <= BFLOAT16 * terms[0] + FLOAT32 * terms[1]).all(), error.max()


def check(geometry, a, w, e, bias=None):
    """All products against float64 on the same codes."""
    ours = KERNELS["gpu"].products(geometry)
    a_shape, w_shape = a.codes.shape, w.codes.shape
    found = (
        ours.output(a, w, bias), ours.grad_input(e, w, a_shape), ours.grad_weight(e, a, w_shape)
    )  # fmt: skip
    expected = products_of(geometry, a, w, e)
    around = products_of(geometry, *(centred(q) for q in (a, w, e)))
    folded = products_of(geometry, centred(a), w, centred(e))
    sizes = products_of(geometry, *(Quantized(values=exact(q).abs()) for q in (a, w, e)))
    for each, name in zip(found, ("output", "grad_input", "grad_weight"), strict=True):
        wanted = getattr(expected, name)
        if name == "output" and bias is not None:
            wanted = wanted + bias.double().view(-1, *[1] * (wanted.dim() - 2))
        # the fold rounds to 2^-15.99 of a channel's largest value
        rounded = folded if name == "grad_input" else around
        terms = getattr(rounded, name).abs(), getattr(sizes, name) + sizes_of_fold(name, w, e)
        assert_near(each, wanted, terms)
    return found


def sizes_of_fold(name, w, e):
    """A bound of max|w| sum|e|, in units of 4."""
    if name != "grad_input":
        return 1e-30
    return (
        4 * float(exact(w).abs().max()) * float(exact(e).abs().sum(1).max()) * w.codes[0, 0].numel()
    )


def centred(q):
    """Values without residuals, which is what is rounded."""
    scale, offset = q.scale.double(), q.offset.double()
    z = (-offset / scale).clamp(0, 255).round().nan_to_num()
    return Quantized(values=scale * (q.codes.double() - z))


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "turned"])
def test_the_three_products(name, layout, launched):
    geometry, a_shape, w_shape = GEOMETRIES[name]
    a = quantized(numbers(a_shape, "relu", 0), (8, 8), layout=layout)
    w = quantized(numbers(w_shape, "centred", 1), (8, 8), keep=(0,), layout=layout)
    e_shape = geometry.output(torch.empty(a_shape), torch.empty(w_shape), None).shape
    e = quantized(numbers(e_shape, "tiny", 2), (8, 8), layout=layout)
    launched.clear()
    found = check(geometry, a, w, e, numbers(w_shape[:1], "above", 3))
    assert launched == [
        *("_centre", "_centre", "_combine"),
        *("_centre", "_fold_weight", "_combine"),
        *("_centre", "_centre", "_combine"),
    ]
    if layout == "channels_last" and len(a_shape) == 4:
        assert found[0].is_contiguous(memory_format=torch.channels_last)
        is_cut = bool(geometry.end_padding)  # from a larger map, as torch leaves it
        assert is_cut or found[1].is_contiguous(memory_format=torch.channels_last)
    if layout == "contiguous":
        assert all(each.is_contiguous() for each in found)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_plain_torch_computes_the_same(layout):
    """As in a compiled graph."""
    maps = quantized(numbers((3, 70, 5, 6), "relu", 0), (8, 8), layout=layout)
    weight = quantized(numbers((9, 7, 3, 3), "above", 1), (8, 8), keep=(0,), layout=layout)
    turned = quantized(numbers((9, 7, 3, 3), "below", 1), (8, 8), keep=(1,), layout=layout)
    constant = quantized(torch.full((2, 3, 4, 5), -0.7), (8, 8), layout=layout)
    calls = [
        lambda: convolutions.centre(maps, 1),
        lambda: convolutions.centre(maps, 0, of_values=True),
        lambda: convolutions.centre(constant, 0, of_values=True),
        lambda: convolutions.centre(maps, 1, is_doubled=True)[:1],
        lambda: convolutions.centre(weight, 1, of_values=True),
        lambda: convolutions.centre(turned, 0, of_values=True),
        lambda: convolutions.fold(weight),
    ]
    for call in calls:
        found = call()
        with mock.patch.object(convolutions, "_kernels", return_value=None):
            expected = call()
        for ours, plain in zip(found, expected, strict=True):
            assert ours.dtype == plain.dtype
            torch.testing.assert_close(ours, plain, rtol=2.0**-20, atol=0)
        assert memory_layout(found[0]) == memory_layout(expected[0])
        assert torch.equal(found[0], expected[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_a_result_in_another_dtype_is_the_float32_one_rounded_once(layout, dtype):
    geometry, a_shape, w_shape = GEOMETRIES["padded"]
    a = quantized(numbers(a_shape, "relu", 0), (8, 8), layout=layout)
    w = quantized(numbers(w_shape, "above", 1), (8, 8), keep=(0,), layout=layout)
    e = quantized(numbers((2, 3, 6, 9), "tiny", 2), (8, 8), layout=layout)
    products = KERNELS["gpu"].products(geometry)
    for product, *operands in (
        (products.output, a, w, numbers((3,), "below", 3)),
        (products.grad_input, e, w, torch.Size(a_shape)),
        (products.grad_weight, e, a, torch.Size(w_shape)),
    ):
        expected, found = product(*operands), product(*operands, dtype)
        assert found.dtype == dtype
        assert torch.equal(found, expected.to(dtype))
        assert found.stride() == expected.stride()


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("rule", [SBM(), SBM(zero="integer"), AbsMax(), PowerOfTwo()])
def test_quantizers_and_bits(rule, bits):
    geometry, a_shape, w_shape = GEOMETRIES["padded"]
    levels = torch.tensor(2**bits - 1, dtype=torch.int32)
    e_shape = geometry.output(torch.empty(a_shape), torch.empty(w_shape), None).shape
    a, w, e = (
        rule.quantize(role, numbers(shape, kind, bits), levels, keep, as_codes=True)[0]
        for role, shape, kind, keep in (
            ("act", a_shape, "relu", ()), ("weight", w_shape, "centred", (0,)),
            ("act", e_shape, "centred", ()),
        )
    )  # fmt: skip
    check(geometry, a, w, e)


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("keep", [(), (1,)])
def test_a_weight_s_scale_per_input_channel_is_outside_the_sum(keep, name, launched):
    geometry, a_shape, w_shape = GEOMETRIES[name]
    w = quantized(numbers(w_shape, "above", 1), (8, 8), keep=keep)
    e_shape = geometry.output(torch.empty(a_shape), torch.empty(w_shape), None).shape
    e = quantized(numbers(e_shape, "centred", 2), (8, 8))
    a = quantized(numbers(a_shape, "centred", 2), (8, 8))
    launched.clear()
    found = KERNELS["gpu"].products(geometry).grad_input(e, w, a_shape)
    assert launched == ["_centre", "_centre", "_combine"]
    expected = products_of(geometry, a, w, e).grad_input
    rounded = products_of(geometry, *(centred(q) for q in (a, w, e))).grad_input
    sizes = [Quantized(values=exact(q).abs()) for q in (a, w, e)]
    assert_near(found, expected, (rounded.abs(), products_of(geometry, *sizes).grad_input))


def test_a_bias_and_padding_of_constants():
    # values of 3 times weights of 2 in each tap: the sums count the taps inside of the image
    geometry = ConvGeometry((1,), (1,), (1,), 1)
    a = quantized(torch.full((1, 1, 4), 3.0), (4, 4))
    w = quantized(torch.full((2, 1, 3), 2.0), (4, 4), keep=(0,))
    found = KERNELS["gpu"].products(geometry).output(a, w, torch.tensor([0.0, 100.0]))
    assert found[0].tolist() == [[12.0, 18.0, 18.0, 12.0], [112.0, 118.0, 118.0, 112.0]]


@pytest.mark.parametrize(
    "geometry",
    [
        ConvGeometry((1, 1), (1, 1), (1, 1), 2),
        ConvGeometry((1, 1), (1, 1), (1, 1), 4),
        ConvGeometry((2, 2), (1, 1), (1, 1), 1, transposed=True),
    ],
)
def test_other_convolutions_are_float32(geometry, launched):
    assert KERNELS["gpu"].reason_against(geometry)
    w_shape = (4, 4, 3, 3) if geometry.transposed else (4, 4 // geometry.groups, 3, 3)
    a = quantized(numbers((2, 4, 5, 5), "centred", 0), (8, 8))
    w = quantized(numbers(w_shape, "centred", 1), (8, 8))
    found = KERNELS["gpu"].products(geometry).output(a, w, None)
    assert "_centre" not in launched
    assert torch.equal(found, KERNELS["simulate"].products(geometry).output(a, w, None))


def test_errors_with_a_scale_per_sample_are_float32(launched):
    geometry, a_shape, w_shape = GEOMETRIES["padded"]
    w = quantized(numbers(w_shape, "centred", 1), (8, 8), keep=(0,))
    e = quantized(numbers((2, 3, 6, 9), "centred", 2), (8, 8), keep=(0,))
    products = KERNELS["gpu"].products(geometry)
    found = products.grad_input(e, w, torch.Size(a_shape))
    assert "_combine" not in launched
    torch.testing.assert_close(
        found, geometry.grad_input(e.dequantize(), w.dequantize(), torch.Size(a_shape))
    )


@pytest.mark.parametrize("place", ["scale", "offset"])
def test_a_nan_stays(place):
    geometry, a_shape, w_shape = GEOMETRIES["padded"]
    a = quantized(numbers(a_shape, "relu", 0), (8, 8))
    w = quantized(numbers(w_shape, "centred", 1), (8, 8), keep=(0,))
    e = quantized(numbers((2, 3, 6, 9), "centred", 2), (8, 8))
    products = KERNELS["gpu"].products(geometry)
    clean = products.output(a, w, None)
    getattr(w, place)[1] = math.nan
    found = products.output(a, w, None)
    assert found[:, 1].isnan().all()
    assert torch.equal(found[:, ::2], clean[:, ::2])
    assert products.grad_input(e, w, torch.Size(a_shape)).isnan().all()
    getattr(e, place).fill_(math.nan)
    assert products.grad_weight(e, a, torch.Size(w_shape)).isnan().all()


def test_empty_batches():
    geometry, a_shape, w_shape = GEOMETRIES["padded"]
    a = quantized(numbers((0, *a_shape[1:]), "relu", 0), (8, 8))
    w = quantized(numbers(w_shape, "centred", 1), (8, 8), keep=(0,))
    assert KERNELS["gpu"].products(geometry).output(a, w, None).shape == (0, 3, 6, 9)
