"""`int8` as a whole: exact where the processor is, float32 where it is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bitcycle.kernels import KERNELS, ConvGeometry, LinearGeometry, exact_bits

from .. import naive
from .operands import counted, exact, is_exact, naive_conv, numbers, quantized

INT8 = KERNELS["int8"]
GEOMETRY = LinearGeometry()


def test_all_three_products_are_within_float32_rounding_at_every_width() -> None:
    for top in (7, 8):
        for bits in (2, 3, 4, 5, 6, 7):
            a = quantized(numbers((65, 130), "centred", 0), (bits, top))
            w = quantized(numbers((33, 130), "centred", 1), (bits, top), torch.int8, keep=(0,))
            turned = quantized(numbers((33, 130), "centred", 1), (bits, top), torch.int8, keep=(1,))
            e = quantized(numbers((65, 33), "tiny", 2), (bits, top))
            with counted() as calls:
                output = INT8.output(GEOMETRY, a, w, None)
                grad_input = INT8.grad_input(GEOMETRY, e, turned, torch.Size((65, 130)))
                grad_weight = INT8.grad_weight(GEOMETRY, e, a, torch.Size((33, 130)))
            assert calls == ({"gemm": 3} if is_exact(a, w) else {"float": 3})
            products = naive.linear(exact(a), exact(w), None, exact(e))
            expected = [
                (output, products.output),
                (grad_input, naive.linear(exact(a), exact(turned), None, exact(e)).grad_input),
                (grad_weight, products.grad_weight),
            ]
            for (
                ours,
                theirs,
            ) in expected:  # 130 products of random sign: no more than float32 itself loses
                assert float((ours - theirs).norm() / theirs.norm()) < 2e-6


def test_codes_that_saturate_some_processors_are_multiplied_exactly_anyway() -> None:
    # two products of 255 and -128 exceed 16 bits; where those are added first, float32 is used
    x = torch.full((4, 64), 255.0)
    x[:, 0] = 0
    w = torch.full((3, 64), -128.0)
    w[:, 0] = 127
    a, q = quantized(x, (8, 8)), quantized(w, (8, 8), torch.int8, keep=(0,))
    assert a.codes.max() == 255
    assert q.codes.min() == -128
    with counted() as calls:
        output = INT8.output(GEOMETRY, a, q, None)
    assert calls == ({"gemm": 1} if exact_bits("cpu") == 16 else {"float": 1})
    assert output.unique().tolist() == [63 * 255 * -128.0]


def test_seven_and_eight_bits_are_exact_together_everywhere() -> None:
    x = torch.full((4, 64), 255.0)
    x[:, 0] = 0
    w = torch.full((3, 64), -64.0)
    w[:, 0] = 63
    a, q = quantized(x, (8, 8)), quantized(w, (7, 7), torch.int8, keep=(0,))
    with counted() as calls:
        assert INT8.output(GEOMETRY, a, q, None).unique().tolist() == [63 * 255 * -64.0]
    assert calls == {"gemm": 1}


def test_the_weight_gradient_of_a_convolution_sums_over_all_positions() -> None:
    for samples, side in ((1, 256), (8, 128), (16, 256)):
        for ends in ((0, 255), (255, 0)):
            # all codes but one are at an end: 2^17 products of the largest overflow 32 bits
            common, other = ends
            x = torch.full((samples, 1, side, side), float(common))
            x[0, 0, 0, 0] = other
            width = (8, 8) if exact_bits("cpu") == 16 else (7, 7)
            a, e = quantized(x, (8, 8)), quantized(x, width)
            geometry = ConvGeometry((1, 1), (0, 0), (1, 1), 1)
            with counted() as calls:
                grad = INT8.grad_weight(geometry, e, a, torch.Size((1, 1, 1, 1)))
            assert calls == {"gemm": 1}
            expected = float((exact(a) * exact(e)).sum())
            terms = float((exact(a).abs() + 255).sum() * (255 + exact(e).abs().max()))
            assert abs(float(grad) - expected) < 2e-7 * terms


@pytest.mark.parametrize("groups", [1, 2])
def test_a_convolution_s_output_and_weight_gradient_are_integer_products(groups: int) -> None:
    geometry = ConvGeometry((2, 1), (1, 1), (1, 1), groups)
    a = quantized(numbers((2, 6, 9, 8), "centred", 0), (7, 7))
    w = quantized(numbers((4, 6 // groups, 3, 3), "centred", 1), (7, 7), torch.int8, keep=(0,))
    e = quantized(numbers((2, 4, 5, 8), "centred", 2), (7, 7))
    with counted() as calls:
        output = INT8.output(geometry, a, w, None)
        grad_weight = INT8.grad_weight(geometry, e, a, torch.Size((4, 6 // groups, 3, 3)))
    assert calls == {"conv": 1, "gemm": groups}
    expected = naive_conv(geometry).products(exact(a), exact(w), None, exact(e))
    for ours, theirs in ((output, expected.output), (grad_weight, expected.grad_weight)):
        assert float((ours - theirs).norm() / theirs.norm()) < 2e-6


def test_there_is_no_integer_convolution_on_other_devices() -> None:
    geometry = ConvGeometry((1,), (0,), (1,), 1)
    a = quantized(numbers((1, 2, 4), "centred", 0), (4, 4))
    away = replace(a, codes=a.codes.to("meta"))
    assert INT8.takes(geometry, a, a)
    assert not INT8.takes(geometry, away, away)
