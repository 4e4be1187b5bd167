"""The rules of sbm: ranges and rounding of each role, its codes, and properties of its grids."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bitcycle.quantizers import SBM, sbm
from bitcycle.quantizers.base import Quantized

from .rounding import assert_unbiased

X = torch.tensor([-1.0, -0.4, 0.1, 0.7, 2.0])
KEY = torch.tensor([123, 456], dtype=torch.int32)


def _encode(
    x: Tensor, bits: int, role: str = "act", within: tuple[float, float] | None = None,
    key: Tensor | None = None, keep: tuple[int, ...] = (), **options: object,
) -> Quantized:  # fmt: skip
    rule = SBM(**options)
    span = rule.range_of(role, x, keep) if within is None else tuple(map(torch.tensor, within))
    return rule.encode(role, x, torch.tensor(2**bits - 1, dtype=torch.int32), span, key)


def test_the_check_values_of_the_specification() -> None:
    for role in ("weight", "act", "error"):
        for bits, expected in (
            # the specification's check values; .1 and .7 are exact ties at 8 bits
            (3, [-1.0, -0.571429, 0.285714, 0.714286, 2.0]),
            (8, [-1.0, -0.4, 0.105882, 0.694118, 2.0]),
        ):
            values = _encode(X, bits, role).dequantize()
            torch.testing.assert_close(values, torch.tensor(expected), rtol=0, atol=1e-6)


def test_the_check_values_of_a_fixed_range() -> None:
    # the specification's check values: range [0, 1.5], 3 bits; .75 is an exact tie
    values = _encode(torch.tensor([2.0, -0.3, 0.75]), 3, within=(0.0, 1.5)).dequantize()
    torch.testing.assert_close(values, torch.tensor([1.5, 0.0, 0.857143]), rtol=0, atol=1e-6)


def test_a_weight_has_a_grid_per_output_channel() -> None:
    w = torch.tensor([[0.0, 0.2, 1.0], [0.0, 20.0, 100.0]])
    values = _encode(w, 1, "weight", keep=(0,)).dequantize()
    assert values.tolist() == [[0.0, 0.0, 1.0], [0.0, 0.0, 100.0]]


def test_an_integer_zero_puts_0_on_the_grid() -> None:
    # range [-1, 2], 3 bits: s = 3/7, -min/s = 7/3 rounds to 2 steps below 0, 5 above
    quantized = _encode(torch.cat([X, torch.zeros(1)]), 3, zero="integer")
    s = 3 / 7
    assert quantized.offset is not None
    assert quantized.offset.item() == pytest.approx(-2 * s)
    expected = [-2 * s, -1 * s, 0.0, 2 * s, 5 * s, 0.0]
    assert quantized.dequantize().tolist() == pytest.approx(expected)
    assert quantized.dequantize()[-1] == 0.0


def test_an_integer_zero_widens_the_range_to_include_0() -> None:
    for low, high, widened in ((1.0, 2.0, 2.0), (-2.0, -1.0, 2.0)):
        quantized = _encode(torch.tensor([low, high]), 2, zero="integer")
        assert quantized.scale is not None
        assert quantized.scale.item() == pytest.approx(widened / 3)


def test_a_floor_reproduces_the_reference_s_smallest_step() -> None:
    e = torch.tensor([0.0, 0.4e-8, 1.6e-8, 1e-5])
    # 16 bits over 1e-5 would be a step of 1.5e-10; the reference's is 1e-8
    floored = _encode(e, 16, "error", error_rounding="nearest", floor=1e-8)
    assert floored.dequantize().tolist() == pytest.approx([0.0, 0.0, 2e-8, 1e-5], abs=1e-12)
    free = _encode(e, 16, "error", error_rounding="nearest")
    assert free.dequantize().tolist() == pytest.approx(e.tolist(), abs=0.8e-10)


def test_only_the_error_is_rounded_stochastically() -> None:
    torch.manual_seed(0)
    x = torch.randn(100)
    nearest = _encode(x, 3, "error", error_rounding="nearest", key=KEY).dequantize()
    for role in ("weight", "act"):
        assert torch.equal(_encode(x, 3, role, key=KEY).dequantize(), nearest)
    stochastic = _encode(x, 3, "error", key=KEY).dequantize()
    assert not torch.equal(stochastic, nearest)
    assert torch.equal(_encode(x, 3, "error", key=KEY).dequantize(), stochastic)


def test_a_stochastic_error_is_unbiased() -> None:
    torch.manual_seed(0)
    e, rule, levels = torch.randn(50), SBM(), torch.tensor(7)
    within = rule.range_of("error", e)
    low, high = within
    inner = (e > low) & (e < high)  # the two ends are on the grid

    def rounded(key: Tensor) -> Tensor:
        values = rule.encode("error", e, levels, within, key).dequantize()
        torch.testing.assert_close(values[~inner], e[~inner])
        return (values - low)[inner]

    assert_unbiased((e - low)[inner], ((high - low) / 7).expand(48), rounded)


def test_grids_of_half_precision_tensors_are_computed_in_float32() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        for role in ("weight", "act", "error"):
            x = X.to(dtype)
            quantized = _encode(x, 6, role, error_rounding="nearest")
            assert quantized.scale is not None
            assert quantized.scale.dtype == torch.float32
            assert quantized.dequantize().dtype == dtype
            expected = _encode(x.float(), 6, role, error_rounding="nearest").dequantize().to(dtype)
            assert torch.equal(quantized.dequantize(), expected)


def test_a_float16_range_wider_than_float16_reaches_is_finite() -> None:
    x = torch.tensor([-60000.0, 0.0, 60000.0], dtype=torch.float16)
    low, high = SBM().range_of("act", x)
    assert (high - low).item() == 120000.0
    assert _encode(x, 2).dequantize().isfinite().all()


def test_float64_keeps_its_precision() -> None:
    x = X.double()
    quantized = _encode(x, 20)
    assert quantized.dequantize().dtype == torch.float64
    step = 3 / (2**20 - 1)
    expected = torch.round((x + 1) / step) * step - 1
    torch.testing.assert_close(quantized.dequantize(), expected, rtol=0, atol=1e-15)


def test_empty_and_0_d_tensors_pass_through() -> None:
    for shape in ((0,), (0, 3), (2, 0), ()):
        for role in ("weight", "act", "error"):
            x = torch.full(shape, 0.3)
            keep = (0,) if role == "weight" and shape else ()
            assert torch.equal(_encode(x, 3, role, keep=keep, key=KEY).dequantize(), x)


def test_codes_are_whole_numbers_from_0_to_the_level_count() -> None:
    assert _encode(X, 3).integer_codes().tolist() == [0.0, 1.0, 3.0, 4.0, 7.0]
    assert SBM().integer_range(3) == (0, 7)
    assert SBM().integer_range(8) == (0, 255)
    assert SBM().integer_range(9) is None


def test_ranges_are_shared_between_processes_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_another_process(ends: Tensor, op: object) -> None:
        assert op == torch.distributed.ReduceOp.MAX
        ends.copy_(torch.maximum(ends, torch.tensor([5.0, 1.0])))  # it has the range [-5, 1]

    monkeypatch.setattr(sbm, "_is_distributed", lambda: True)
    monkeypatch.setattr(torch.distributed, "all_reduce", with_another_process)
    synced = SBM(sync_ranges=True)
    for role in ("act", "error"):
        assert [end.item() for end in synced.range_of(role, X)] == [-5.0, 2.0]
        assert [end.item() for end in SBM().range_of(role, X)] == [-1.0, 2.0]
    # weights are the same on every process
    assert [end.item() for end in synced.range_of("weight", X)] == [-1.0, 2.0]


def test_sbm_has_no_rule_for_the_weight_gradient() -> None:
    assert SBM().roles == {"weight", "act", "error"}
    assert torch.equal(SBM().encode_grad(X, torch.tensor(3), KEY), X)


properties = settings(max_examples=100, derandomize=True)
small_tensors = st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=30).map(torch.tensor)


def _codes_of(
    x: Tensor,
    bits: int,
    role: str = "act",
    keep: tuple[int, ...] = (),
    key: Tensor | None = None,
    as_codes: bool = True,
    **options: object,
) -> Quantized:
    rule = SBM(**options)
    levels = torch.tensor(2**bits - 1, dtype=torch.int32)
    return rule.encode(role, x, levels, rule.range_of(role, x, keep), key, as_codes)


@properties
@given(small_tensors, st.integers(1, 8), st.sampled_from(("real", "integer")))
def test_codes_stand_for_the_values_of_the_grid(x: Tensor, bits: int, zero: str) -> None:
    codes, values = (_codes_of(x, bits, as_codes=each, zero=zero) for each in (True, False))
    assert codes.codes.dtype == torch.uint8
    assert codes.values is None
    assert codes.half == 2.0 ** (bits - 1)
    assert torch.equal(codes.dequantize(), values.dequantize())
    assert int(codes.codes.max()) <= 2**bits - 1


@properties
@given(st.floats(-1e6, 1e6, width=32), st.integers(1, 8))
def test_a_constant_is_its_offset_to_the_last_bit(value: float, bits: int) -> None:
    x = torch.full((3, 2), value)
    for keep in ((), (0,)):
        codes = _codes_of(x, bits, "weight" if keep else "act", keep)
        assert torch.equal(codes.dequantize(), x)
        assert not codes.scale.any()


def test_weights_have_codes_per_channel() -> None:
    w = torch.tensor([[0.0, 0.2, 1.0], [0.0, 20.0, 100.0]])
    codes = _codes_of(w, 2, "weight", (0,))
    assert codes.codes.tolist() == [[0, 1, 3], [0, 1, 3]]
    assert codes.scale.shape == codes.offset.shape == (2, 1)
    torch.testing.assert_close(
        codes.dequantize(), torch.tensor([[0.0, 1 / 3, 1.0], [0.0, 100 / 3, 100.0]])
    )


def test_columns_can_have_a_grid_each() -> None:
    w = torch.tensor([[0.0, 0.0], [0.2, 20.0], [1.0, 100.0]])
    codes = _codes_of(w, 2, "weight", (1,))
    assert codes.codes.tolist() == [[0, 0], [1, 1], [3, 3]]
    assert codes.scale.shape == (1, 2)


def test_a_stochastic_error_has_the_codes_of_its_values() -> None:
    e = torch.randn(40, generator=torch.Generator().manual_seed(0))
    codes = _codes_of(e, 3, "error", key=KEY)
    assert codes.codes.dtype == torch.uint8
    values = _codes_of(e, 3, "error", key=KEY, as_codes=False)
    assert torch.equal(codes.dequantize(), values.dequantize())


def test_both_products_of_a_backward_pass_get_the_same_codes() -> None:
    e, rule = torch.randn(5), SBM()
    within = rule.range_of("error", e)
    first, second = rule.encode_error(e, torch.tensor(7), within, KEY, as_codes=True)
    assert first is second
    assert first.codes is not None


def test_codes_of_half_precision_tensors_have_float32_scales() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.randn(20, generator=torch.Generator().manual_seed(0)).to(dtype)
        codes = _codes_of(x, 6)
        assert codes.scale.dtype == codes.offset.dtype == torch.float32
        assert torch.equal(codes.codes, _codes_of(x.float(), 6).codes)


def test_channels_last_tensors_have_channels_last_codes() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    for role, keep in (("act", ()), ("weight", (0,)), ("weight", (1,)), ("error", ())):
        codes = _codes_of(x, 4, role, keep, key=KEY)
        assert codes.codes.is_contiguous(memory_format=torch.channels_last)


def test_empty_and_0_d_tensors_have_codes() -> None:
    for shape in ((0,), (0, 3), (2, 0), ()):
        x = torch.full(shape, 0.3)
        codes = _codes_of(x, 3)
        assert codes.codes.shape == x.shape
        assert torch.equal(codes.dequantize(), x)


def test_a_nan_shows_in_the_scale() -> None:
    codes = _codes_of(torch.tensor([1.0, float("nan"), 2.0]), 4)
    assert codes.scale.isnan()
    assert codes.dequantize().isnan().all()


def test_the_weight_has_a_second_grid_when_grad_input_gets_its_own() -> None:
    assert SBM().weight_grids == 1
    assert SBM(grad_input_weight="per_input_channel").weight_grids == 2


# Magnitudes whose differences divided by 2^23 are normal numbers: below, a step has no precision.
magnitudes = st.one_of(st.just(0.0), st.floats(2.0**-66, 2.0**20, width=32))
numbers = st.tuples(magnitudes, st.sampled_from((-1.0, 1.0))).map(lambda pair: pair[0] * pair[1])
tensors = st.lists(numbers, min_size=1, max_size=40).map(torch.tensor)
near_together = st.tuples(numbers, st.lists(st.integers(0, 400), min_size=1, max_size=40)).map(
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


def _nearest(x: Tensor, bits: int, zero: str = "real", role: str = "act") -> Quantized:
    sbm = SBM(zero=zero, error_rounding="nearest")
    return sbm.encode(role, x, torch.tensor(2**bits - 1), sbm.range_of(role, x))


def _step_and_ulp(x: Tensor, bits: int, zero: str) -> tuple[float, float]:
    low, high = float(x.min()), float(x.max())
    if zero == "integer":
        low, high = min(low, 0.0), max(high, 0.0)
    return (high - low) / (2**bits - 1), _ulp(max(abs(low), abs(high)))


@given(any_tensor, st.integers(1, 8), zeros)
def test_a_grid_has_at_most_two_to_the_b_values(x: Tensor, bits: int, zero: str) -> None:
    quantized = _nearest(x, bits, zero)
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
    error = float((_nearest(x, bits, zero).dequantize().double() - x.double()).abs().max())
    assert error <= step / 2 + 2 * ulp


@given(any_tensor, bit_widths, zeros)
def test_rounding_is_monotone(x: Tensor, bits: int, zero: str) -> None:
    rounded = _nearest(x.sort().values, bits, zero).dequantize()
    assert bool((rounded.diff() >= 0).all())


@given(any_tensor, bit_widths)
def test_both_ends_are_kept_within_4_ulp(x: Tensor, bits: int) -> None:
    rounded = _nearest(x, bits).dequantize().double()
    _, ulp = _step_and_ulp(x, bits, "real")
    assert float(rounded.min()) == float(x.min())
    # the step, its multiple and the sum are rounded, and the sum may be the smallest of them
    assert abs(float(rounded.max()) - float(x.max())) <= 4 * ulp


@given(any_tensor, bit_widths)
def test_with_an_integer_zero_the_offset_is_a_whole_number_of_steps(x: Tensor, bits: int) -> None:
    quantized = _nearest(x, bits, "integer")
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
    real, integer = _nearest(x, bits, "real"), _nearest(x, bits, "integer")
    assert torch.equal(real.dequantize(), integer.dequantize())


@given(
    numbers, bit_widths, st.integers(1, 5), st.sampled_from(("act", "weight", "error")),
    st.sampled_from((0.0, 1e-8)),
)  # fmt: skip
def test_a_constant_tensor_is_reproduced_exactly(
    value: float, bits: int, size: int, role: str, floor: float
) -> None:
    x = torch.full((size, size), value)
    sbm = SBM(floor=floor)
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


def test_a_subclass_with_its_own_range_is_asked_for_it() -> None:
    class Doubled(SBM):
        def range_of(self, role, x, keep=()):
            low, high = super().range_of(role, x, keep)
            return 2 * low, 2 * high

    x, levels = torch.tensor([-1.0, 0.5, 1.0]), torch.tensor(15, dtype=torch.int32)
    quantized, (low, high) = Doubled().quantize("weight", x, levels, as_codes=True)
    assert (low.item(), high.item()) == (-2.0, 2.0)
    assert quantized.offset.item() == -2.0
