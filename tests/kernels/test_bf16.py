"""`bf16`: whole numbers near zero, results within 2^-8 of their norm."""

from __future__ import annotations

import pytest
import torch

from bitcycle.kernels import KERNELS, ConvGeometry, LinearGeometry, MatMulGeometry
from bitcycle.kernels.bf16 import near_zero
from bitcycle.quantizers.base import Quantized

from .. import naive
from .operands import counted, exact, naive_conv, numbers, quantized

BF16 = KERNELS["bf16"]
BOUND = 2.0**-8


def _distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


def test_numbers_near_zero_leave_less_than_a_step_of_offset() -> None:
    for bits in (2, 5, 8):
        for kind in ("centred", "relu", "above", "below", "tiny"):
            q = quantized(numbers((8, 9), kind, 0), (bits, 8))
            operand = near_zero(q)
            assert operand.numbers.dtype == torch.bfloat16
            values = operand.numbers.double() * operand.scale.double() + operand.offset.double()
            bound = 1e-6 * float(exact(q).abs().max())
            torch.testing.assert_close(values, exact(q), rtol=0, atol=bound)
            if kind in ("centred", "relu", "tiny"):  # 0 is inside the range
                assert float(operand.offset.abs() / operand.scale) <= 0.5 + 1e-4
                assert float(operand.numbers.abs().max()) <= 256


def test_numbers_stay_exact_however_far_the_offset_is() -> None:
    for offset in (1000.0, -1000.0, 1e6):
        q = quantized(numbers((8, 9), "centred", 0) + offset, (8, 8))
        operand = near_zero(q)
        assert float(operand.numbers.abs().max()) <= 256  # bfloat16 holds no more whole numbers
        values = operand.numbers.double() * operand.scale.double() + operand.offset.double()
        torch.testing.assert_close(values, exact(q), rtol=1e-6, atol=0)


def test_a_step_of_0_leaves_the_offset_alone() -> None:
    operand = near_zero(quantized(torch.full((2, 3), 0.7), (8, 8)))
    assert operand.offset.item() == pytest.approx(0.7)
    assert operand.scale == 0
    assert operand.numbers.isfinite().all()


def test_linear_products_are_within_2_to_the_minus_8_of_their_norm() -> None:
    for kind in ("centred", "relu"):
        # unshifted codes 0..255 on centred data would be off by more than the norm itself
        geometry = LinearGeometry()
        a = quantized(numbers((128, 512), kind, 0), (8, 8))
        w = quantized(numbers((96, 512), "centred", 1) / 20, (8, 8), keep=(0,))
        e = quantized(numbers((128, 96), "tiny", 2), (8, 8))
        with counted() as calls:
            output = BF16.output(geometry, a, w, None)
            grad_input = BF16.grad_input(geometry, e, w, torch.Size((128, 512)))
            grad_weight = BF16.grad_weight(geometry, e, a, torch.Size((96, 512)))
        assert not calls
        expected = naive.linear(exact(a), exact(w), None, exact(e))
        assert _distance(output, expected.output) < BOUND
        assert _distance(grad_input, expected.grad_input) < BOUND
        assert _distance(grad_weight, expected.grad_weight) < BOUND
        assert _distance(output, expected.output) > 1e-5  # it is bfloat16


def test_unshifted_codes_would_be_off_by_far_more() -> None:
    a = quantized(numbers((128, 512), "centred", 0), (8, 8))
    w = quantized(numbers((96, 512), "centred", 1), (8, 8))
    main = (a.codes.bfloat16() @ w.codes.bfloat16().t()).double() * (a.scale * w.scale)
    rest = a.offset * w.dequantize().double().sum(1) + w.offset * a.scale * a.codes.sum(1, True)
    expected = exact(a) @ exact(w).t()
    assert _distance(main + rest, expected) > 4 * BOUND


def test_convolutions_are_within_2_to_the_minus_8_of_their_norm() -> None:
    for groups in (1, 4):
        geometry = ConvGeometry((1, 1), (1, 1), (1, 1), groups)
        a = quantized(numbers((2, 32, 9, 9), "centred", 0), (8, 8))
        w = quantized(numbers((16, 32 // groups, 3, 3), "centred", 1), (8, 8), keep=(0,))
        e = quantized(numbers((2, 16, 9, 9), "centred", 2), (8, 8))
        with counted() as calls:
            output = BF16.output(geometry, a, w, None)
            grad_input = BF16.grad_input(geometry, e, w, torch.Size((2, 32, 9, 9)))
            grad_weight = BF16.grad_weight(geometry, e, a, torch.Size((16, 32 // groups, 3, 3)))
        assert not calls
        expected = naive_conv(geometry).products(exact(a), exact(w), None, exact(e))
        assert _distance(output, expected.output) < BOUND
        # a processor without bf16 arithmetic adds up the taps in bfloat16 as well
        assert _distance(grad_input, expected.grad_input) < 2 * BOUND
        assert _distance(grad_weight, expected.grad_weight) < BOUND


def test_products_of_activations_are_within_2_to_the_minus_8_of_their_norm() -> None:
    geometry = MatMulGeometry()
    a = quantized(numbers((3, 64, 32), "centred", 0), (8, 8))
    b = quantized(numbers((3, 32, 48), "centred", 1), (8, 8))
    e = quantized(numbers((3, 64, 48), "centred", 2), (8, 8))
    with counted() as calls:
        ours = [
            BF16.output(geometry, a, b, None),
            BF16.grad_input(geometry, e, b, torch.Size((3, 64, 32))),
            BF16.grad_weight(geometry, e, a, torch.Size((3, 32, 48))),
        ]
    assert not calls
    expected = naive.matmul(exact(a), exact(b), exact(e))
    theirs = [expected.output, expected.grad_input, expected.grad_weight]
    assert all(_distance(x, y) < BOUND for x, y in zip(ours, theirs, strict=True))


def test_scales_on_the_summed_axis_are_folded_into_the_error_even_of_a_far_offset() -> None:
    # weights of one sign, channels of very different size: rest and scales both matter
    rows = torch.logspace(-3, 3, 8).view(8, 1)
    w = quantized(rows * (numbers((8, 40), "centred", 0) + 4), (8, 8), keep=(0,))
    e = quantized(numbers((30, 8), "centred", 1), (8, 8))
    grad = BF16.grad_input(LinearGeometry(), e, w, torch.Size((30, 40)))
    assert _distance(grad, exact(e) @ exact(w)) < BOUND


def test_a_float32_error_meets_float32_weights() -> None:
    e, w = Quantized(values=torch.randn(3, 4)), quantized(numbers((4, 5), "centred", 0), (8, 8))
    with counted() as calls:
        grad = BF16.grad_input(LinearGeometry(), e, w, torch.Size((3, 5)))
    assert calls == {"float": 1}
    assert torch.equal(grad, e.values @ w.dequantize())
