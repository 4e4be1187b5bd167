"""1x1 convolutions as products of pixels, against float64 and int64 on the same codes."""

import math

import pytest
import torch
import torch.nn.functional as F

from bitcycle.gpu import integers
from bitcycle.kernels import KERNELS, PointwiseGeometry
from bitcycle.ops.layout import memory_layout
from bitcycle.quantizers.base import Quantized
from tests.bitcycle.kernels.operands import exact, naive_conv, numbers, quantized, reach

KERNEL = KERNELS["gpu"]


def geometry_of(*stride):
    zeros, ones = (0,) * len(stride), (1,) * len(stride)
    return PointwiseGeometry(stride, zeros, ones, 1)


CASES = {
    "2 dimensions": (geometry_of(1, 1), (2, 70, 6, 7), 9),
    "one map": (geometry_of(1, 1), (1, 5, 9, 8), 130),
    "one pixel": (geometry_of(1, 1), (7, 5, 1, 1), 3),
    "one channel": (geometry_of(1, 1), (3, 1, 4, 5), 2),
    "strided": (geometry_of(2, 2), (3, 5, 7, 6), 8),
    "strided one way": (geometry_of(1, 3), (2, 3, 3, 8), 4),
    "1 dimension": (geometry_of(1), (3, 5, 70), 4),
    "1 dimension, strided": (geometry_of(2), (3, 5, 21), 4),
    "3 dimensions": (geometry_of(1, 1, 1), (2, 3, 4, 3, 5), 6),
    "3 dimensions, strided": (geometry_of(1, 2, 2), (2, 3, 4, 3, 5), 6),
}


def operands(name, layout="contiguous", keep=(0,)):
    geometry, a_shape, channels = CASES[name]
    w_shape = (channels, a_shape[1], *(1,) * geometry.num_dims)
    e_shape = (a_shape[0], channels, *geometry.output_size(a_shape[2:], w_shape[2:]))
    a = quantized(numbers(a_shape, "relu", 0), (8, 8), layout=layout)
    w = quantized(numbers(w_shape, "centred", 1), (8, 8), keep=keep)
    e = quantized(numbers(e_shape, "tiny", 2), (8, 8), layout=layout)
    return geometry, a, w, e


def products_of(geometry, a, w, e):
    """The three products in float64."""
    return naive_conv(geometry).products(a, w, None, e)


def three(geometry, a, w, e, bias=None, dtype=None):
    ours = KERNEL.products(geometry)
    return (
        ours.output(a, w, bias, dtype),
        ours.grad_input(e, w, a.codes.shape, dtype),
        ours.grad_weight(e, a, w.codes.shape, dtype),
    )


def check(geometry, a, w, e, bias=None):
    """Float32 rounding of exact sums; grad_input besides half a unit of the weight in 16 bits."""
    found = three(geometry, a, w, e, bias)
    expected = products_of(geometry, *map(exact, (a, w, e)))
    terms = products_of(geometry, *map(reach, (a, w, e)))
    for each, name in zip(found, ("output", "grad_input", "grad_weight"), strict=True):
        wanted, allowed = getattr(expected, name), 2.0**-21 * getattr(terms, name)
        if name == "output" and bias is not None:
            wanted = wanted + bias.double().view(-1, *[1] * geometry.num_dims)
            allowed = allowed + 2.0**-21 * bias.abs().double().view(-1, *[1] * geometry.num_dims)
        if name == "grad_input":  # the unit is max|w| / 32639 of an input channel
            largest = torch.ones_like(exact(w)) * exact(w).abs().amax(0, keepdim=True)
            sums = products_of(geometry, exact(a), largest, exact(e).abs())
            allowed = allowed + sums.grad_input / (2 * 32639)
        assert each.shape == wanted.shape
        assert each.dtype == torch.float32
        error = (each.double() - wanted).abs()
        assert (error <= allowed).all(), f"{name} is off by {(error / allowed).max():.2f}"
    return found


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "turned", "gaps"])
def test_the_three_products(name, layout, launched):
    geometry, a, w, e = operands(name, layout)
    launched.clear()
    found = check(geometry, a, w, e, numbers(w.codes.shape[:1], "above", 3))
    assert launched == ["_lay_out", "_multiply", "_fold", "_multiply_folded"] + [
        "_lay_out", "_multiply",
    ]  # fmt: skip
    if layout in ("contiguous", "channels_last"):
        torchs = (
            geometry.output(a.dequantize(), w.dequantize(), None),
            geometry.grad_input(e.dequantize(), w.dequantize(), a.codes.shape),
        )
        for ours, theirs in zip(found, torchs, strict=False):
            # of three dimensions torch has channels-last on a GPU only
            like = a.codes if geometry.num_dims == 3 else theirs
            assert memory_layout(ours) == memory_layout(like)
    assert found[2].is_contiguous()


def test_only_a_stride_copies_codes(monkeypatch):
    copied = []
    for name in ("contiguous", "reshape", "flatten"):
        original = getattr(torch.Tensor, name)

        def spy(x, *args, original=original, **kwargs):
            made = original(x, *args, **kwargs)
            if x.dtype == torch.uint8 and made.data_ptr() != x.data_ptr():
                copied.append(tuple(x.shape))
            return made

        monkeypatch.setattr(torch.Tensor, name, spy)
    for name, layout, copies in (
        ("2 dimensions", "contiguous", 0),
        ("2 dimensions", "channels_last", 0),
        ("1 dimension, strided", "contiguous", 0),
        ("3 dimensions", "contiguous", 0),
        ("strided", "channels_last", 2),
        ("strided", "contiguous", 2),  # the pixels that count, for output and for grad_weight
    ):
        case = operands(name, layout)
        copied.clear()
        three(*case)
        assert len(copied) == copies, (name, layout)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("zero", [0, 100, 255])
def test_sums_of_codes_are_exact(zero, layout):
    # whole numbers below 2^24 are exact in float32
    one, zeros = torch.ones(()), -float(zero) * torch.ones(())
    generator = torch.Generator().manual_seed(zero)
    codes = [
        torch.randint(256, shape, dtype=torch.uint8, generator=generator)
        for shape in ((2, 33, 5, 6), (20, 33, 1, 1), (2, 20, 5, 6))
    ]
    if layout == "channels_last":
        codes = [each.to(memory_format=torch.channels_last) for each in codes]
    a, w, e = (Quantized(one, zeros, codes=each, half=128 * one) for each in codes)
    a64, w64, e64 = (each.long() - zero for each in codes)
    products = KERNEL.products(geometry_of(1, 1))
    expected = torch.einsum("nihw,oi->nohw", a64, w64[:, :, 0, 0])
    assert torch.equal(products.output(a, w, None).long(), expected)
    expected = torch.einsum("nohw,oi->nihw", e64, w64[:, :, 0, 0])
    assert torch.equal(products.grad_input(e, w, a64.shape).long(), expected)  # one scale: no fold
    expected = torch.einsum("nohw,nihw->oi", e64, a64)[:, :, None, None]
    assert torch.equal(products.grad_weight(e, a, w64.shape).long(), expected)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_long_sums_over_maps_are_those_at_once(layout, monkeypatch):
    case = operands("2 dimensions", layout)
    at_once = three(*case)
    monkeypatch.setattr(integers, "MAX_SUMMED", 64)
    for ours, expected in zip(three(*case), at_once, strict=True):
        assert torch.equal(ours, expected)


def test_large_tiles_give_the_same(monkeypatch):
    geometry, a_shape, channels = geometry_of(1, 1), (2, 70, 9, 8), 70
    a = quantized(numbers(a_shape, "relu", 0), (8, 8))
    w = quantized(numbers((channels, 70, 1, 1), "above", 1), (8, 8), keep=(0,))
    e = quantized(numbers((2, channels, 9, 8), "centred", 2), (8, 8))
    results = []
    for full in (0, 10**9):
        monkeypatch.setattr(integers, "_FULL", full)
        results.append(three(geometry, a, w, e))
    for large, small in zip(*results, strict=True):
        assert torch.equal(large, small)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("name", ["2 dimensions", "strided"])
def test_a_result_in_another_dtype_is_the_float32_one_rounded_once(name, layout, dtype):
    case = operands(name, layout)
    for found, expected in zip(three(*case, dtype=dtype), three(*case), strict=True):
        assert found.dtype == dtype
        assert torch.equal(found, expected.to(dtype))
        assert found.stride() == expected.stride()


@pytest.mark.parametrize("name", ["2 dimensions", "strided", "1 dimension"])
@pytest.mark.parametrize("keep", [(), (1,)])
def test_a_weight_s_scale_per_input_channel_is_outside_the_sum(keep, name, launched):
    geometry, a, w, e = operands(name, keep=keep)
    launched.clear()
    found = KERNEL.products(geometry).grad_input(e, w, a.codes.shape)
    assert launched == ["_lay_out", "_multiply"]
    expected = products_of(geometry, *map(exact, (a, w, e))).grad_input
    terms = products_of(geometry, *map(reach, (a, w, e))).grad_input
    assert ((found.double() - expected).abs() <= 2.0**-21 * terms).all()


def test_pixels_between_those_of_a_stride_have_no_gradient():
    geometry, a, w, e = operands("strided")
    found = KERNEL.products(geometry).grad_input(e, w, a.codes.shape)
    assert found[:, :, ::2, ::2].abs().min() > 0
    assert found.count_nonzero() == found[:, :, ::2, ::2].numel()


def test_errors_with_a_scale_per_sample_are_float32(launched):
    geometry, a, w, e = operands("2 dimensions")
    e = quantized(exact(e).float(), (8, 8), keep=(0,))
    launched.clear()
    found = KERNEL.products(geometry).grad_input(e, w, a.codes.shape)
    assert "_multiply" not in launched
    assert "_multiply_folded" not in launched
    expected = geometry.grad_input(e.dequantize(), w.dequantize(), a.codes.shape)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("place", ["scale", "offset"])
def test_a_nan_stays(place):
    geometry, a, w, e = operands("2 dimensions")
    clean = KERNEL.products(geometry).output(a, w, None)
    getattr(w, place)[1] = math.nan
    output, grad_input, _ = three(geometry, a, w, e)
    assert output[:, 1].isnan().all()
    assert torch.equal(output[:, ::2], clean[:, ::2])
    assert grad_input.isnan().all()


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("name", ["2 dimensions", "strided", "1 dimension"])
def test_empty_batches(name, layout):
    geometry, a, w, e = operands(name, layout)
    a, e = (Quantized(q.scale, q.offset, codes=q.codes[:0], half=q.half) for q in (a, e))
    output, grad_input, grad_weight = three(geometry, a, w, e)
    assert output.shape == e.codes.shape
    assert grad_input.shape == a.codes.shape
    assert grad_weight.shape == w.codes.shape
    assert not grad_weight.any()


def test_codes_that_do_not_fit_are_refused_as_by_torch():
    geometry, a, w, _ = operands("2 dimensions")
    few = Quantized(w.scale, w.offset, codes=w.codes[:, :3], half=w.half)
    with pytest.raises(RuntimeError):
        KERNEL.products(geometry).output(a, few, None)
    with pytest.raises(RuntimeError):
        F.conv2d(a.dequantize(), few.dequantize())
