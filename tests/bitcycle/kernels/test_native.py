"""`native` as a whole: exact products of codes, the fold, and float32 for what it does not have."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.kernels import (
    KERNELS,
    ConvGeometry,
    Geometry,
    Kernel,
    LinearGeometry,
    MatMulGeometry,
    native,
)
from bitcycle.native.layer import LayerProduct
from bitcycle.quantizers import SBM, DoReFa, Quantizer

from .. import naive
from .operands import counted, exact, naive_conv, numbers, quantized

NATIVE = KERNELS["native"]
GEOMETRY = LinearGeometry()
PRODUCTS = NATIVE.products(GEOMETRY)


def test_all_three_products_are_within_float32_rounding_at_every_width() -> None:
    for bits in range(2, 9):
        a = quantized(numbers((65, 130), "centred", 0), (bits, 8))
        w = quantized(numbers((33, 130), "centred", 1), (bits, 8), keep=(0,))
        e = quantized(numbers((65, 33), "tiny", 2), (bits, 8))
        with counted() as calls:
            output = PRODUCTS.output(a, w, None)
            grad_input = PRODUCTS.grad_input(e, w, torch.Size((65, 130)))
            grad_weight = PRODUCTS.grad_weight(e, a, torch.Size((33, 130)))
        assert calls == {"gemm": 2, "gemm_folded": 1}
        expected = naive.linear(exact(a), exact(w), None, exact(e))
        # 130 products of random sign: no more than float32 itself loses, or the fold
        for ours, theirs, bound in (
            (output, expected.output, 2e-6),
            (grad_input, expected.grad_input, 2.0**-14),
            (grad_weight, expected.grad_weight, 2e-6),
        ):
            assert float((ours - theirs).norm() / theirs.norm()) < bound


def test_the_largest_codes_do_not_saturate() -> None:
    # two products of 255 and -128 exceed 16 bits
    x = torch.full((4, 64), 255.0)
    x[:, 0] = 0
    w = torch.full((3, 64), -128.0)
    w[:, 0] = 127
    a, q = quantized(x, (8, 8)), quantized(w, (8, 8), keep=(0,))
    assert PRODUCTS.output(a, q, None).unique().tolist() == [63 * 255 * -128.0]


def test_the_weight_gradient_of_a_convolution_sums_over_all_positions() -> None:
    products = NATIVE.products(ConvGeometry((1, 1), (0, 0), (1, 1), 1))
    for samples, side in ((1, 256), (8, 128), (16, 256)):
        for common, other in ((0, 255), (255, 0)):
            # all codes but one are at an end: 2^17 products of the largest overflow 32 bits
            x = torch.full((samples, 1, side, side), float(common))
            x[0, 0, 0, 0] = other
            a, e = quantized(x, (8, 8)), quantized(x, (8, 8))
            grad = products.grad_weight(e, a, torch.Size((1, 1, 1, 1)))
            assert float(grad) == pytest.approx(float((exact(a) * exact(e)).sum()), rel=1e-6)


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_the_products_of_a_convolution_are_those_of_codes(groups: int) -> None:
    geometry = ConvGeometry((2, 1), (1, 1), (1, 1), groups)
    a = quantized(numbers((2, 6, 9, 8), "centred", 0), (7, 7))
    w = quantized(numbers((12, 6 // groups, 3, 3), "centred", 1), (7, 7), keep=(0,))
    e = quantized(numbers((2, 12, 5, 8), "centred", 2), (7, 7))
    products = NATIVE.products(geometry)
    with counted() as calls:
        output = products.output(a, w, None)
        grad_input = products.grad_input(e, w, torch.Size((2, 6, 9, 8)))
        grad_weight = products.grad_weight(e, a, torch.Size((12, 6 // groups, 3, 3)))
    assert not calls["float"]
    expected = naive_conv(geometry).products(exact(a), exact(w), None, exact(e))
    for ours, theirs, bound in (
        (output, expected.output, 2e-6),
        (grad_input, expected.grad_input, 2.0**-14),
        (grad_weight, expected.grad_weight, 2e-6),
    ):
        assert float((ours - theirs).norm() / theirs.norm()) < bound


def _conv(num_dims: int, **options: bool) -> ConvGeometry:
    ones = (1,) * num_dims
    return ConvGeometry(ones, ones, ones, 1, **options)


def test_what_the_library_does_not_have_is_named() -> None:
    assert all(NATIVE.reason_against(each) is None for each in (GEOMETRY, _conv(1), _conv(2)))
    assert NATIVE.reason_against(_conv(3)) == "a convolution of 3 dimensions"
    assert NATIVE.reason_against(_conv(2, transposed=True)) == "a transposed convolution"
    for each in (GEOMETRY, _conv(3), _conv(2, transposed=True)):
        assert KERNELS["simulate"].reason_against(each) is None


def test_a_direction_is_one_call_where_the_library_has_the_product(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rule = SBM().grid_rule
    assert rule is not None

    def whole(geometry: Geometry, kernel: Kernel = NATIVE) -> LayerProduct | None:
        return kernel.layer_product(geometry, rule, packs=(True, False))

    has_call = (GEOMETRY, MatMulGeometry(), _conv(1), _conv(2))
    for geometry in has_call:
        made = whole(geometry)
        assert made is not None
        assert (made.second, made.packs) == (geometry.second, (True, False))
        assert (made.rule, made.floor) == (rule.rule, rule.floor)
        assert made == whole(geometry)
    lacks_call = (_conv(3), _conv(2, transposed=True))
    assert not any(whole(geometry) for geometry in lacks_call)
    assert not any(whole(geometry, KERNELS["simulate"]) for geometry in has_call)
    monkeypatch.setattr(native, "HAS_LIBRARY", False)
    assert not any(map(whole, has_call))


def test_codes_on_another_device_and_without_the_library_are_float32_products(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a = quantized(numbers((4, 6), "centred", 0), (4, 4))
    w = quantized(numbers((3, 6), "centred", 1), (4, 4), keep=(0,))
    away = [
        replace(q, **{name: getattr(q, name).to("meta") for name in ("codes", "scale", "offset")})
        for q in (a, w)
    ]
    with counted() as calls:
        assert PRODUCTS.output(*away, None).shape == (4, 3)
    assert calls == {"float": 1}
    monkeypatch.setattr(native, "HAS_LIBRARY", False)
    with counted() as calls:
        output = PRODUCTS.output(a, w, None)
    assert calls == {"float": 1}
    assert torch.equal(output, a.dequantize() @ w.dequantize().t())


def test_a_grid_of_another_shape_is_broadcast() -> None:
    a = quantized(numbers((4, 6), "centred", 0), (4, 4))
    w = quantized(numbers((3, 6), "centred", 1), (4, 4), keep=(0,))
    assert w.scale is not None
    mixed = replace(w, offset=torch.tensor(-0.25))
    output = PRODUCTS.output(a, mixed, None)
    torch.testing.assert_close(output, a.dequantize() @ mixed.dequantize().t())
    one = replace(w, scale=torch.tensor(0.5))
    output = PRODUCTS.output(a, one, None)
    torch.testing.assert_close(output, a.dequantize() @ one.dequantize().t())
    with counted() as calls:
        PRODUCTS.output(a, replace(w, half=None), None)
    assert calls == {"float": 1}


@pytest.mark.parametrize("quantizer", [SBM(), DoReFa(first_last="quantized")])
@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_a_weight_whose_input_is_always_zero_has_no_gradient(
    quantizer: Quantizer, kind: str
) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(20, 9) if kind == "linear" else nn.Conv2d(20, 9, 3, padding=1)
    bc.quantize_model(layer, quantizer, kernel="native")
    bc.set_precision(layer, "FW8/BW8")
    x = torch.rand((37, 20) if kind == "linear" else (5, 20, 7, 6))
    x[:, 3] = 0
    layer(x).square().sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad[:, 3].count_nonzero() == 0
    assert layer.weight.grad[:, 4].count_nonzero() > 0


def test_a_large_bias_beside_a_tiny_product_is_the_result() -> None:
    layer = bc.quantize_model(nn.Linear(16, 8), kernel="native")
    nn.init.constant_(layer.bias, 1e12)
    bc.set_precision(layer, "FW8/BW8")
    assert torch.equal(layer(1e-30 * torch.randn(4, 16)), torch.full((4, 8), 1e12))


@pytest.mark.parametrize("kind", ["linear", "convolution", "depthwise"])
@pytest.mark.parametrize("size", [1e-30, 1e-36, 1e-38])
def test_gradients_of_tiny_errors_keep_their_digits(kind: str, size: float) -> None:
    layers = {
        "linear": lambda: nn.Linear(16, 8),
        "convolution": lambda: nn.Conv2d(16, 8, 3),
        "depthwise": lambda: nn.Conv2d(16, 16, 3, groups=16),
    }
    torch.manual_seed(1)
    found, x = {}, torch.randn((32, 16) if kind == "linear" else (4, 16, 6, 6))
    for kernel in ("simulate", "native"):
        torch.manual_seed(0)
        layer = bc.quantize_model(layers[kind](), kernel=kernel)
        bc.set_precision(layer, "FW8/BW8")
        given = x.clone().requires_grad_()
        output = layer(given)
        output.backward(
            size * torch.randn(output.shape, generator=torch.Generator().manual_seed(2))
        )
        found[kernel] = given.grad.double(), layer.weight.grad.double()
    for expected, actual in zip(found["simulate"], found["native"], strict=True):
        assert (actual - expected).norm() < 1e-4 * expected.norm()
