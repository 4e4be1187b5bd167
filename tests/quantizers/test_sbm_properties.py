"""Properties of sbm's grids, over tensors that hypothesis invents."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bitcycle.quantizers import SBM
from bitcycle.quantizers.base import Quantized

# Magnitudes whose differences divided by 2^23 are normal numbers: below, a step has no precision.
_magnitudes = st.one_of(st.just(0.0), st.floats(2.0**-66, 2.0**20, width=32))
_numbers = st.tuples(_magnitudes, st.sampled_from((-1.0, 1.0))).map(lambda pair: pair[0] * pair[1])
tensors = st.lists(_numbers, min_size=1, max_size=40).map(torch.tensor)
near_together = st.tuples(_numbers, st.lists(st.integers(0, 400), min_size=1, max_size=40)).map(
    lambda pair: (
        torch.nextafter(torch.tensor(pair[0]), torch.tensor(1e9))
        + torch.tensor(pair[1]) * _ulp(abs(pair[0]))
    )
)  # a large offset and a small range: where floating point is at its worst
any_tensor = st.one_of(tensors, near_together)
zeros = st.sampled_from(("real", "integer"))
bit_widths = st.integers(1, 16)


def _ulp(x: float) -> float:
    """The spacing of float32 at x (and never less than at 2^-66)."""
    return 2.0 ** (math.floor(math.log2(max(x, 2.0**-66))) - 23)


def _encode(x: Tensor, bits: int, zero: str = "real", role: str = "act") -> Quantized:
    sbm = SBM(zero=zero, error_rounding="nearest")
    return sbm.encode(role, x, torch.tensor(2**bits - 1), sbm.range_of(role, x))


def _step_and_ulp(x: Tensor, bits: int, zero: str) -> tuple[float, float]:
    low, high = float(x.min()), float(x.max())
    if zero == "integer":
        low, high = min(low, 0.0), max(high, 0.0)
    return (high - low) / (2**bits - 1), _ulp(max(abs(low), abs(high)))


@given(any_tensor, st.integers(1, 8), zeros)
def test_a_grid_has_at_most_two_to_the_b_values(x: Tensor, bits: int, zero: str) -> None:
    quantized = _encode(x, bits, zero)
    assert quantized.dequantize().unique().numel() <= 2**bits
    codes = quantized.integer_codes()
    assert float(codes.min()) >= 0
    assert float(codes.max()) <= 2**bits - 1


@given(any_tensor, st.integers(1, 8), zeros)
def test_codes_are_idempotent_up_to_8_bits(x: Tensor, bits: int, zero: str) -> None:
    sbm = SBM(zero=zero)
    levels, within = torch.tensor(2**bits - 1), sbm.range_of("act", x)
    once = sbm.encode("act", x, levels, within)
    twice = sbm.encode("act", once.dequantize(), levels, within)
    assert torch.equal(twice.integer_codes(), once.integer_codes())
    assert torch.equal(twice.dequantize(), once.dequantize())


@given(any_tensor, bit_widths, zeros)
def test_the_error_is_at_most_half_a_step_and_2_ulp(x: Tensor, bits: int, zero: str) -> None:
    step, ulp = _step_and_ulp(x, bits, zero)
    error = float((_encode(x, bits, zero).dequantize().double() - x.double()).abs().max())
    assert error <= step / 2 + 2 * ulp


@given(tensors, st.integers(1, 15), zeros)
def test_the_error_s_bound_shrinks_with_bits(x: Tensor, bits: int, zero: str) -> None:
    fewer, ulp = _step_and_ulp(x, bits, zero)
    more, _ = _step_and_ulp(x, bits + 1, zero)
    assert more <= fewer / 2 * (1 + 1e-12)
    error = float((_encode(x, bits + 1, zero).dequantize().double() - x.double()).abs().max())
    assert error <= fewer / 4 + 2 * ulp  # the finer grid's error under the coarser one's bound


@given(any_tensor, bit_widths, zeros)
def test_rounding_is_monotone(x: Tensor, bits: int, zero: str) -> None:
    rounded = _encode(x.sort().values, bits, zero).dequantize()
    assert bool((rounded.diff() >= 0).all())


@given(any_tensor, bit_widths)
def test_both_ends_are_kept_within_2_ulp(x: Tensor, bits: int) -> None:
    rounded = _encode(x, bits).dequantize().double()
    _, ulp = _step_and_ulp(x, bits, "real")
    assert float(rounded.min()) == float(x.min())
    assert abs(float(rounded.max()) - float(x.max())) <= 2 * ulp


@given(any_tensor, bit_widths)
def test_with_an_integer_zero_the_offset_is_a_whole_number_of_steps(x: Tensor, bits: int) -> None:
    quantized = _encode(x, bits, "integer")
    assert quantized.scale is not None
    assert quantized.offset is not None
    steps = torch.round(quantized.offset / quantized.scale)
    assert torch.equal(quantized.offset, steps * quantized.scale)
    zero = SBM(zero="integer").encode(
        "act", torch.zeros(1), torch.tensor(2**bits - 1), (x.min(), x.max())
    )
    assert float(zero.dequantize()) == 0.0


@given(any_tensor, bit_widths)
def test_after_a_relu_both_zeros_give_the_same_grid(x: Tensor, bits: int) -> None:
    x = torch.cat([x.relu(), torch.zeros(1)])
    real, integer = _encode(x, bits, "real"), _encode(x, bits, "integer")
    assert torch.equal(real.dequantize(), integer.dequantize())


@given(_numbers, bit_widths, st.integers(1, 5), st.sampled_from(("act", "weight", "error")))
def test_a_constant_tensor_is_reproduced_exactly(
    value: float, bits: int, size: int, role: str
) -> None:
    x = torch.full((size, size), value)
    sbm = SBM()
    key = torch.tensor([1, 2], dtype=torch.int32)
    within = sbm.range_of(role, x, (0,) if role == "weight" else ())
    assert torch.equal(sbm.encode(role, x, torch.tensor(2**bits - 1), within, key).dequantize(), x)


@settings(max_examples=50)
@given(
    st.lists(st.integers(0, 4), min_size=0, max_size=4),
    st.permutations(range(4)),
    st.sampled_from((torch.float16, torch.bfloat16, torch.float32, torch.float64)),
    st.sampled_from(("act", "error", "weight")),
)
def test_shape_dtype_device_and_layout_are_kept(
    shape: list[int], order: list[int], dtype: torch.dtype, role: str
) -> None:
    order = [d for d in order if d < len(shape)]
    base = torch.arange(math.prod(shape), dtype=torch.float32).sin().to(dtype)
    x = base.view(shape).permute(order)  # dense, in any order of dimensions, possibly empty or 0-d
    sbm = SBM()
    key = torch.tensor([1, 2], dtype=torch.int32)
    within = sbm.range_of(role, x, (0,) if role == "weight" and x.dim() else ())
    values = sbm.encode(role, x, torch.tensor(15), within, key).dequantize()
    assert (values.shape, values.dtype, values.device) == (x.shape, x.dtype, x.device)
    if x.numel():  # the stride of a dimension with one element means nothing
        steps = zip(values.stride(), x.stride(), x.shape, strict=True)
        assert all(ours == theirs for ours, theirs, size in steps if size > 1)
