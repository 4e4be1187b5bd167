"""Ranges, codes and values on affine grids equal plain torch to the last bit."""

import math

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bitcycle.gpu import grids
from bitcycle.gpu.arithmetic import uniform
from bitcycle.native.encode import Rule
from bitcycle.ops import noise
from bitcycle.ops.affine import quantize_at_once, round_nearest, round_stochastic, value_range
from bitcycle.ops.codes import decode, nearest_codes, stochastic_codes
from bitcycle.ops.noise import noise_key
from bitcycle.ops.packing import pack_nibbles, unpack_nibbles
from bitcycle.ops.state import count_up, flag_nonfinite, observe
from bitcycle.quantizers.absmax import AbsMax
from bitcycle.quantizers.base import round_to_range, work_range
from bitcycle.quantizers.pow2 import PowerOfTwo
from tests.bitcycle.gpu.interpreted.comparison import assert_same_bits, levels_of, plain_torch

CLOCK = torch.tensor([123456789, 17, 3], dtype=torch.int32)
KEY = torch.tensor([-5, 987654321], dtype=torch.int32)


@triton.jit
def draw(out, shift):
    i = tl.arange(0, 8)
    tl.store(out + i, uniform(i.to(tl.int64) + shift, 5, 7))


def quantize_plainly(x, keep, levels, rule, key, as_codes, floor=0.0):
    """Scale, offset and numbers by the quantizers' own torch."""
    with plain_torch():
        low, high = work_range(x, keep)
        within = low + 0.0, high + 0.0  # fused code finds 0 among zeros of both signs
        if rule in (Rule.SYMMETRIC, Rule.POWER):
            quantizer = AbsMax() if rule is Rule.SYMMETRIC else PowerOfTwo()
            made = quantizer.encode("error", x, levels, within, key, as_codes=as_codes)
        else:
            has_zero = rule is Rule.WITH_ZERO
            made = round_to_range(
                x, within, levels, key=key, as_codes=as_codes, has_zero=has_zero, floor=floor
            )
    return made, within


def compare(x, keep, bits, rule, key=None, as_codes=False, floor=0.0):
    levels = levels_of(bits)
    expected, (low, high) = quantize_plainly(x, keep, levels, rule, key, as_codes, floor)
    dtype = torch.uint8 if as_codes else torch.float32
    kept = keep[0] if keep else None
    dtype = x.dtype if dtype is torch.float32 else dtype
    found = grids.quantize(x, kept, levels, rule, floor=floor, key=key, dtype=dtype)
    assert_same_bits(found.low, low)
    assert_same_bits(found.high, high)
    assert_same_bits(found.scale, expected.scale)
    assert_same_bits(found.offset, expected.offset)
    assert found.numbers.stride() == x.stride()
    if as_codes:
        assert_same_bits(found.half, expected.half)
        if low.isfinite().all() and high.isfinite().all():  # torch's cast of NaN is undefined
            assert_same_bits(found.numbers, expected.codes)
    else:
        assert_same_bits(found.numbers, expected.values)


def numbers(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator) * 3 + 0.4


@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 6, 7, 8, 12, 16])
def test_values_and_codes_of_every_rule_and_bits(rule, bits):
    x = numbers(5, 41, seed=bits)
    compare(x, (), bits, rule, key=KEY)
    if bits <= 8:
        compare(x, (0,), bits, rule, as_codes=True)


@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_read_in_float32_and_written_back(rule, dtype):
    x = numbers(3, 37).to(dtype)
    compare(x, (), 5, rule, key=KEY)
    compare(x, (0,), 8, rule, as_codes=True)


@pytest.mark.parametrize("keep", [(), (0,), (1,), (3,)])
def test_channels_of_any_dimension_and_layout(keep):
    x = numbers(2, 5, 4, 3)
    last = x.contiguous(memory_format=torch.channels_last)
    compare(x, keep, 4, Rule.FROM_LOW, key=KEY)
    compare(last, keep, 4, Rule.WITH_ZERO, key=KEY, as_codes=True)


def test_tensors_of_several_programs_and_parts():
    x = numbers(2, 9000)
    compare(x, (), 8, Rule.FROM_LOW, key=KEY)
    compare(x, (0,), 8, Rule.FROM_LOW, as_codes=True)
    compare(numbers(1100, 7).t(), (1,), 4, Rule.SYMMETRIC)
    many = numbers(7000, 3)
    assert grids.partial_ranges(many, 1).shape[2] > 1
    compare(many, (1,), 3, Rule.WITH_ZERO)


@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize(
    "value",
    [0.0, -0.0, 2.5, -3.25, 1e-44, 3e38, math.inf, -math.inf, math.nan],
)
def test_constants_and_what_is_not_finite(rule, value):
    x = torch.full((2, 3), value)
    compare(x, (), 4, rule)
    x[0] = 1.0
    compare(x, (), 1, rule, as_codes=True)
    compare(x, (0,), 8, rule, key=KEY)


@pytest.mark.parametrize("factor", [1e-42, 1e-38, 1e-30, 1e30, 5e37])
@pytest.mark.parametrize("rule", list(Rule))
def test_tiny_and_huge_ranges(rule, factor):
    compare(numbers(4, 9) * factor, (0,), 4, rule, key=KEY)


def test_a_floor_is_the_smallest_step():
    compare(numbers(20), (), 8, Rule.FROM_LOW, floor=0.5)
    compare(numbers(20), (), 8, Rule.WITH_ZERO, floor=0.5, as_codes=True)


@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(
    values=st.lists(st.floats(width=32), min_size=1, max_size=40),
    bits=st.integers(1, 8),
    rule=st.sampled_from(list(Rule)),
    is_stochastic=st.booleans(),
)
def test_any_floats(values, bits, rule, is_stochastic):
    compare(torch.tensor(values), (), bits, rule, key=KEY if is_stochastic else None)


def test_a_clock_makes_the_key_of_its_words():
    x, levels = numbers(50), levels_of(4)
    found = grids.quantize(x, None, levels, Rule.FROM_LOW, key=CLOCK, dtype=torch.uint8)
    with plain_torch():
        key = noise_key(CLOCK)
    given_words = grids.quantize(x, None, levels, Rule.FROM_LOW, key=key, dtype=torch.uint8)
    assert torch.equal(found.numbers, given_words.numbers)
    nearest = grids.quantize(x, None, levels, Rule.FROM_LOW, dtype=torch.uint8)
    assert not torch.equal(found.numbers, nearest.numbers)


def test_parts_of_two_processes_give_the_range_of_both():
    a, b = numbers(3, 50), 2 * numbers(3, 50, seed=1)
    parts = torch.maximum(grids.partial_ranges(a, 0), grids.partial_ranges(b, 0))
    found = grids.quantize(a, parts, levels_of(8), Rule.FROM_LOW, dtype=torch.float32)
    both = torch.cat([a, b], 1)
    assert torch.equal(found.low, both.amin(1, keepdim=True))
    assert torch.equal(found.high, both.amax(1, keepdim=True))
    within = found.low, found.high
    again = grids.quantize(a, within, levels_of(8), Rule.FROM_LOW, dtype=torch.float32)
    assert torch.equal(again.numbers, found.numbers)
    assert torch.equal(again.offset, found.low)


def test_a_tensor_takes_two_launches(launched):
    grids.quantize(numbers(40, 40), None, levels_of(8), Rule.FROM_LOW, dtype=torch.uint8)
    assert launched == ["_range", "_encode"]


def test_functions_of_ops_take_the_kernels_and_equal_plain_torch(launched):
    x = numbers(3, 8, 2, 2).contiguous(memory_format=torch.channels_last)
    grid = torch.tensor(0.3), torch.tensor(-2.0), torch.tensor(15.0)
    codes = torch.arange(32, dtype=torch.uint8).view(4, 8)
    row_grid = torch.rand(4, 1), torch.rand(4, 1)
    calls = [
        ("_join_range", lambda: torch.cat([end.flatten() for end in value_range(x, (1,))])),
        ("_encode", lambda: round_nearest(x, *grid)),
        ("_encode", lambda: round_stochastic(x, *grid, KEY)),
        ("_encode", lambda: round_stochastic(x.transpose(2, 3)[..., :1], *grid, KEY)),
        ("_encode", lambda: nearest_codes(x, *grid)),
        ("_encode", lambda: stochastic_codes(x, *grid, KEY)),
        ("_decode", lambda: decode(codes, *row_grid)),
        ("_pack_nibbles", lambda: pack_nibbles(codes[:2, :7] & 15)),
        ("_unpack_nibbles", lambda: unpack_nibbles(codes.flatten(), 63)),
    ]
    for kernel, call in calls:
        launched.clear()
        found = call()
        assert launched[-1] == kernel
        with plain_torch():
            assert_same_bits(found, call())
    assert quantize_at_once(x, (1, 2), levels_of(2), Rule.FROM_LOW, dtype=torch.uint8) is None


def test_the_key_of_a_clock_equals_that_of_torch(launched):
    elements = torch.arange(-4, 5, dtype=torch.int32)
    for clock in ([0, 0, 0], [-1, 2**31 - 1, 7], [-(2**31), 5, -9]):
        clock = torch.tensor(clock, dtype=torch.int32)
        found = noise_key(clock)
        with plain_torch():
            expected = noise_key(clock)
        assert torch.equal(found, expected)
        assert torch.equal(noise.uniform(elements, clock), noise.uniform(elements, expected))
    assert launched == ["_noise_key"] * 3


def test_the_buffers_of_a_layer(launched):
    clock = CLOCK.clone()
    copy = count_up(clock, 2)
    assert clock.tolist() == copy.tolist() == [123456789, 17, 4]
    flags = torch.zeros(3)
    flag_nonfinite(flags, 1, torch.zeros(5, 1), torch.ones(5, 1))
    assert flags.tolist() == [0, 0, 0]
    flag_nonfinite(flags, 1, torch.zeros(2), torch.tensor([1.0, math.inf]))
    assert flags.isnan().tolist() == [False, True, False]
    assert launched == ["_count_up", "_flag_nonfinite", "_flag_nonfinite"]
    for momentum in (0.1, None):
        rows, expected, flags = torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(3)
        for high in (1.0, 2.7, math.nan, 0.3):
            ends = torch.tensor(-0.7), torch.tensor(high)
            observe(rows, 1, *ends, momentum, flags, 2)
            assert flags[2].isnan() == math.isnan(high) or rows[1, 0] == 3
            with plain_torch():
                observe(expected, 1, *ends, momentum)
        assert_same_bits(rows, expected)
        assert rows[1, 0] == 3
    assert launched.count("_observe") == 8


def test_element_numbers_wrap_at_two_to_the_32():
    first, second = torch.empty(8), torch.empty(8)
    draw[(1,)](first, 0)
    draw[(1,)](second, 2**32)
    assert torch.equal(first, second)
    assert first.unique().numel() == 8


def test_a_failed_kernel_warns_once_and_plain_torch_goes_on(monkeypatch):
    from bitcycle.gpu import driver
    from bitcycle.warnings import BitcycleWarning

    def fail(*arguments, **constants):
        raise RuntimeError("no such instruction\nsecond line")

    class Broken:
        __name__ = "_encode"

        def __getitem__(self, programs):
            return fail

    monkeypatch.setattr(grids, "_encode", Broken())
    x, grid = numbers(9), (torch.tensor(0.3), torch.tensor(0.0), torch.tensor(7.0))
    with plain_torch():
        expected = round_nearest(x, *grid)
    with pytest.warns(BitcycleWarning, match="encode failed: no such instruction; the run goes on"):
        found = round_nearest(x, *grid)
    assert torch.equal(found, expected)
    assert torch.equal(round_nearest(x, *grid), expected)  # a second warning would be an error
    assert set(driver.failures()) == {"encode"}
    assert grids.decode(torch.zeros(3, dtype=torch.uint8), *grid[:2]) is not None


def test_empty_tensors():
    x = torch.empty(0, 4)
    grid = (torch.tensor(0.3), torch.tensor(0.0), torch.tensor(7.0))
    assert round_nearest(x, *grid).shape == (0, 4)
    assert pack_nibbles(torch.empty(0, dtype=torch.uint8)).shape == (0,)
    ends = torch.tensor(-1.0), torch.tensor(2.0)
    found = grids.quantize(x, ends, levels_of(2), Rule.FROM_LOW, dtype=torch.uint8)
    assert found.numbers.shape == (0, 4)
    assert found.scale == 1
