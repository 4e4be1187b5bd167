"""Which products stay whole numbers, and what happens to the others."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bitcycle.kernels import KERNELS, ConvGeometry, LinearGeometry
from bitcycle.kernels.coded import lies_on
from bitcycle.quantizers.base import Quantized

from .operands import counted, numbers, quantized

LINEAR = LinearGeometry()
CODED = ["int8", "bf16"]
A = quantized(numbers((6, 5), "centred", 0), (4, 4))
W = quantized(numbers((3, 5), "above", 1), (4, 4), torch.int8, keep=(0,))
E = quantized(numbers((6, 3), "centred", 2), (4, 4))
BIAS = torch.tensor([1.0, -2.0, 3.0])


def _floats(q: Quantized) -> Quantized:
    return Quantized(values=q.dequantize())


@pytest.mark.parametrize("kernel", CODED)
def test_an_operand_that_is_float32_makes_a_float32_product(kernel: str) -> None:
    for which in ("first", "second", "both"):
        a = A if which == "second" else _floats(A)
        w = W if which == "first" else _floats(W)
        e = E if which == "second" else _floats(E)
        with counted() as calls:
            output = KERNELS[kernel].output(LINEAR, a, w, BIAS)
            grad_input = KERNELS[kernel].grad_input(LINEAR, e, w, torch.Size((6, 5)))
            grad_weight = KERNELS[kernel].grad_weight(
                LINEAR, e, a if which == "both" else _floats(A), torch.Size((3, 5))
            )
        assert calls == {"float": 3}
        torch.testing.assert_close(output, A.dequantize() @ W.dequantize().t() + BIAS)
        torch.testing.assert_close(grad_input, E.dequantize() @ W.dequantize())
        torch.testing.assert_close(grad_weight, E.dequantize().t() @ A.dequantize())


@pytest.mark.parametrize("kernel", CODED)
def test_scales_per_sample_lie_on_no_channel_of_the_result(kernel: str) -> None:
    a = quantized(numbers((6, 5), "centred", 0), (4, 4), keep=(0,))  # a scale per row: 6 of them
    e = quantized(numbers((6, 3), "centred", 2), (4, 4), keep=(0,))
    with counted() as calls:
        output = KERNELS[kernel].output(LINEAR, a, W, None)
        grad_weight = KERNELS[kernel].grad_weight(LINEAR, E, a, torch.Size((3, 5)))
        other = KERNELS[kernel].grad_weight(LINEAR, e, A, torch.Size((3, 5)))
    assert calls == {"float": 3}
    torch.testing.assert_close(output, a.dequantize() @ W.dequantize().t())
    torch.testing.assert_close(grad_weight, E.dequantize().t() @ a.dequantize())
    torch.testing.assert_close(other, e.dequantize().t() @ A.dequantize())


def test_a_scale_lies_on_the_dimension_it_varies_along() -> None:
    assert not lies_on(None, 0)
    for dim in (0, 1):
        assert lies_on(torch.tensor(1.0), dim)
        assert lies_on(torch.ones(1, 1, 1, 1), dim)
    assert lies_on(torch.ones(3, 1), 0)
    assert not lies_on(torch.ones(3, 1), 1)
    assert lies_on(torch.ones(1, 3), 1)
    assert not lies_on(torch.ones(2, 3), 0)


@pytest.mark.parametrize("top", [4, 7, 8])
def test_int8_takes_what_the_processor_multiplies_exactly(
    top: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, w, kernel = replace(A, top=top), replace(W, top=8), KERNELS["int8"]
    for bits in (0, 15, 16):
        monkeypatch.setattr("bitcycle.kernels.int8.exact_bits", lambda device, bits=bits: bits)
        assert kernel.takes(LINEAR, a, w) == (top + 8 <= bits)
    assert KERNELS["bf16"].takes(LINEAR, a, w)


@pytest.mark.parametrize("kernel", CODED)
def test_empty_operands_and_transposed_convolutions_are_not_taken(kernel: str) -> None:
    takes = KERNELS[kernel].takes
    assert takes(LINEAR, A, W)
    assert not takes(LINEAR, quantized(torch.zeros(0, 5), (4, 4)), W)
    assert not takes(LINEAR, A, quantized(torch.zeros(0, 5), (4, 4), torch.int8))
    ones = (1, 1)
    direct, transposed = (
        ConvGeometry(ones, ones, ones, 1, transposed=turned) for turned in (False, True)
    )
    assert takes(direct, A, W)
    assert not takes(transposed, A, W)


@pytest.mark.parametrize("kernel", [*CODED, "dequantize"])
def test_nothing_to_multiply_gives_nothing_but_the_bias(kernel: str) -> None:
    for shape in ((0, 8, 4), (3, 8, 0), (3, 0, 4)):
        m, k, n = shape
        a, e = quantized(torch.zeros(m, k), (8, 8)), quantized(torch.zeros(m, n), (8, 8))
        w = quantized(torch.zeros(n, k), (8, 8), torch.int8)
        output = KERNELS[kernel].output(LINEAR, a, w, torch.full((n,), 2.0))
        assert output.shape == (m, n)
        assert bool((output == 2).all())
        grad_input = KERNELS[kernel].grad_input(LINEAR, e, w, torch.Size((m, k)))
        grad_weight = KERNELS[kernel].grad_weight(LINEAR, e, a, torch.Size((n, k)))
        assert (grad_input.shape, grad_weight.shape) == ((m, k), (n, k))
        assert not grad_input.any()
        assert not grad_weight.any()


def test_a_convolution_over_more_products_than_a_32_bit_sum_holds_is_float32() -> None:
    geometry = ConvGeometry((1,), (0,), (1,), 1)
    channels = (1 << 16) + 1
    a = quantized(torch.linspace(-1, 1, channels).view(1, channels, 1), (4, 4))
    w = quantized(torch.linspace(1, 2, channels).view(1, channels, 1), (4, 4), torch.int8)
    with counted() as calls:
        output = KERNELS["int8"].output(geometry, a, w, None)
    assert calls == {"float": 1}
    expected = float((a.dequantize().double() * w.dequantize().double()).sum())
    assert float(output) == pytest.approx(expected, rel=1e-3)  # float32 sums of 2^16 products


@pytest.mark.parametrize("kernel", [*CODED, "dequantize"])
def test_constant_operands_multiply_exactly(kernel: str) -> None:
    for value in (0.7, 0.0, -3.0):
        # a constant has a step of 0 and codes that weigh nothing: its value is its offset
        a = quantized(torch.full((2, 4), value), (4, 4))
        w = quantized(torch.full((3, 4), -2.0), (4, 4), torch.int8, keep=(0,))
        output = KERNELS[kernel].output(LINEAR, a, w, None)
        assert output.flatten().tolist() == pytest.approx([-8 * value] * 6, rel=1e-7)


@pytest.mark.parametrize("kernel", [*CODED, "dequantize"])
def test_one_nan_in_an_operand_s_range_makes_the_product_nan(kernel: str) -> None:
    x = numbers((6, 5), "centred", 0)
    x[2, 3] = float("nan")
    assert KERNELS[kernel].output(LINEAR, quantized(x, (4, 4)), W, None).isnan().all()
