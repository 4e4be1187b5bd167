"""Integer products: exact sums of any length, layout and size, by either of the two ways."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bitcycle.kernels import ConvGeometry, exact_bits, integer
from bitcycle.kernels.integer import (
    MAX_REDUCTION,
    IntegerArithmetic,
    _int_mm_gemm,
    _onednn_gemm,
    integer_conv,
    integer_gemm,
)

from .operands import laid_out, quantized, thrifty

LOW = -128 if exact_bits("cpu") == 16 else -64  # the lowest code that meets 255 exactly
WAYS = {"oneDNN": _onednn_gemm, "_int_mm": _int_mm_gemm}
needs_integers = pytest.mark.skipif(exact_bits("cpu") == 0, reason="a build without oneDNN")
pytestmark = needs_integers
sizes = st.sampled_from((1, 2, 3, 8, 16, 17, 31, 64, 100))


def _codes(shape: tuple[int, ...], low: int, high: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high + 1, shape, generator=generator)


def _reference(x: Tensor, w: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    result = (x.long() @ w.long().t()).double() * scale.double()
    return result if bias is None else result + bias.double()


@pytest.mark.parametrize("way", WAYS)
@thrifty
@given(sizes, sizes, sizes, st.booleans(), st.booleans(), st.booleans(), st.integers(0, 999))
def test_a_product_is_that_of_the_whole_numbers(way, m, k, n, has_bias, turned, is_extreme, seed):
    x = _codes((m, k), 0, 255, seed).to(torch.uint8)
    w = _codes((n, k), LOW, -LOW - 1, seed + 1).to(torch.int8)
    if is_extreme:
        x, w = torch.full_like(x, 255), torch.full_like(w, LOW)
    if turned:
        x = laid_out(x, "turned")
    scale = torch.rand(n, generator=torch.Generator().manual_seed(seed)) + 0.5
    bias = torch.linspace(-1e4, 1e4, n) if has_bias else None
    actual, expected = WAYS[way](x, w, scale, bias), _reference(x, w, scale, bias)
    assert actual.dtype == torch.float32
    # one rounding of the scaled sum, one of the bias, one of the result
    terms = (x.long() @ w.long().abs().t()).double() * scale + (0 if bias is None else bias.abs())
    assert bool(((actual.double() - expected).abs() <= 3 * 2.0**-24 * terms).all())


@pytest.mark.parametrize("way", WAYS)
def test_one_row_with_the_strides_of_a_column_is_read_rightly(way: str) -> None:
    x = _codes((64, 1), 0, 255).to(torch.uint8).t()
    assert x.shape == (1, 64)
    assert x.stride() == (1, 1)
    w = _codes((24, 64), LOW, -LOW - 1).to(torch.int8)
    for _ in range(20):  # memory that was not written to differs from call to call
        assert torch.equal(
            WAYS[way](x, w, torch.ones(24), None), _reference(x, w, torch.ones(24)).float()
        )


@pytest.mark.parametrize("way", ["oneDNN", "_int_mm", "integer_gemm"])
def test_a_reduction_of_length_1_with_a_transposed_operand_is_read_rightly(way: str) -> None:
    multiply = {**WAYS, "integer_gemm": integer_gemm}[way]
    x = _codes((1, 40), 0, 255).to(torch.uint8).t()  # (40, 1), strides (1, 40)
    w = _codes((1, 24), LOW, -LOW - 1).to(torch.int8).t()  # (24, 1), strides (1, 24)
    for _ in range(20):
        assert torch.equal(
            multiply(x, w, torch.ones(24), None), _reference(x, w, torch.ones(24)).float()
        )


def test_a_second_operand_that_is_not_contiguous_is_copied() -> None:
    x = _codes((5, 32), 0, 255).to(torch.uint8)
    w = _codes((32, 16), LOW, -LOW - 1).to(torch.int8).t()
    assert not w.is_contiguous()
    expected = _reference(x, w, torch.ones(16)).float()
    assert torch.equal(integer_gemm(x, w, torch.ones(16), None), expected)
    gaps = laid_out(w, "gaps")
    assert torch.equal(integer_gemm(x, gaps, torch.ones(16), None), expected)


def test_scales_that_are_an_expanded_number_are_copied() -> None:
    x = torch.full((2, 8), 3, dtype=torch.uint8)
    w = torch.full((4, 8), -2, dtype=torch.int8)
    scale = torch.tensor([0.5]).expand(4)
    assert integer_gemm(x, w, scale, None).tolist() == [[-24.0] * 4] * 2


@pytest.mark.parametrize("way", ["cpu", "elsewhere"])
def test_long_sums_of_extreme_codes_do_not_overflow(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for length in (MAX_REDUCTION, MAX_REDUCTION + 1, 2**17, 2**20):
        for a, b in ((255, LOW), (255, -LOW - 1), (0, LOW)):
            if way == "elsewhere":  # the way that other devices go, on this one
                monkeypatch.setattr("bitcycle.kernels.integer._onednn_gemm", _int_mm_gemm)
            x = torch.full((3, length), a, dtype=torch.uint8)
            w = torch.full((2, length), b, dtype=torch.int8)
            actual = integer_gemm(x, w, torch.ones(2), None)
            expected = float(
                length * a * b
            )  # as a Python int: 2^20 * 255 * 128 is far beyond 32 bits
            parts = length // MAX_REDUCTION + 1
            torch.testing.assert_close(
                actual, torch.full((3, 2), expected), rtol=parts * 2.0**-24, atol=0
            )


@pytest.mark.parametrize("length", [2**17, 2**20])
def test_long_sums_equal_64_bit_integers(length: int) -> None:
    x = _codes((3, length), 0, 255).to(torch.uint8)
    w = _codes((5, length), LOW, -LOW - 1).to(torch.int8)
    x[0], w[0] = 255, LOW
    actual = integer_gemm(x, w, torch.ones(5), torch.full((5,), 7.0))
    expected = _reference(x, w, torch.ones(5), torch.full((5,), 7.0))
    terms = (x.long() @ w.long().abs().t()).double() + 7
    parts = length // MAX_REDUCTION  # each is rounded, and each addition of one
    assert bool(((actual.double() - expected).abs() <= 2 * parts * 2.0**-24 * terms).all())


def test_convolutions_of_extreme_codes_are_exact() -> None:
    for channels in (1, 3, 16, 64, 256):
        for spread in (1, 2, 3):
            x = torch.full((2, channels, 5, 5), 255, dtype=torch.uint8)
            w = torch.full((7, channels, spread, spread), LOW, dtype=torch.int8)
            w[1::2] = -LOW - 1
            geometry = ConvGeometry((1, 1), (1, 1), (1, 1), 1)
            actual = integer_conv(x, w, geometry, torch.ones(7))
            expected = torch.nn.functional.conv2d(x.double(), w.double(), padding=1)
            assert torch.equal(actual.double(), expected)


def test_a_convolution_copies_operands_that_are_not_contiguous() -> None:
    x = laid_out(_codes((2, 6, 5, 7), 0, 255).to(torch.uint8), "gaps")
    w = _codes((6, 4, 3, 3), LOW, -LOW - 1).to(torch.int8).transpose(0, 1).flip(2)
    w = laid_out(w, "turned")
    geometry = ConvGeometry((2, 1), (1, 0), (1, 2), 1)
    scale = torch.tensor([0.25]).expand(4)
    actual = integer_conv(x, w, geometry, scale)
    expected = geometry.output(x.double(), w.double(), None) * 0.25
    assert torch.equal(actual.double(), expected)


def test_exact_bits_tells_what_this_processor_does() -> None:
    bits = exact_bits("cpu")
    assert bits in (15, 16)
    x = torch.full((4, 64), 255, dtype=torch.uint8)
    w = torch.full((4, 64), -128, dtype=torch.int8)
    is_exact = torch.equal(integer_gemm(x, w, torch.ones(4), None), x.float() @ w.float().t())
    assert is_exact == (bits == 16)


def test_unknown_devices_have_no_exact_products() -> None:
    assert exact_bits("mps") == 0
    assert exact_bits("meta") == 0


@pytest.mark.parametrize("carrier", [torch.uint8, torch.int8])
def test_operands_change_their_carrier_and_not_their_values(carrier: torch.dtype) -> None:
    q = quantized(torch.tensor([[-1.0, 0.3, 2.0]]), (4, 7), carrier)
    arithmetic = IntegerArithmetic()
    for operand, dtype in ((arithmetic.first(q), torch.uint8), (arithmetic.second(q), torch.int8)):
        assert operand.numbers.dtype == dtype
        assert operand.top == 7
        torch.testing.assert_close(operand.numbers * operand.scale + operand.offset, q.dequantize())
    assert arithmetic.first(q).numbers.tolist() == [[0, 6, 15]]  # 1.3 / .2 = 6.5, half to even
    assert arithmetic.second(q).numbers.tolist() == [[-8, -2, 7]]


def test_what_is_exact_does_not_depend_on_the_caller_s_modes() -> None:
    wanted = exact_bits("cpu")
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta"):
        assert integer._try_bits("cpu") == wanted
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        assert integer._try_bits("cpu") == wanted
    finally:
        torch.set_default_dtype(before)
