"""Ranges, codes and values of tensors on affine grids, by Triton kernels.

Functions have the names and results of `native.encode`, to the last bit; each returns None where a
kernel cannot run. Float tensors of any of `FLOATS` are read in float32.

A tensor takes two launches: `partial_ranges` leaves [-min, max] of parts of each channel, and
`quantize` makes the grids of these and rounds. In between, processes can take the maximum of their
parts. Memory is seen as (outer, channels, inner), with one range per channel, as in `native`.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from bitcycle.gpu.arithmetic import (
    CLOCK,
    NO_KEY,
    WORDS,
    divide,
    key_words,
    load_key,
    max_nan,
    min_nan,
    power_above,
    reduce_max,
    rint,
    to_dtype,
    uniform,
)
from bitcycle.gpu.driver import FLOATS as FLOATS
from bitcycle.gpu.driver import launch
from bitcycle.native.encode import OnGrid, Rule
from bitcycle.native.encode import is_per_channel as is_per_channel

MAX_PARTS = 256  # of a channel
_BLOCK = 1024  # elements of a program's step
_STEPS = 4  # of a part, at least

# where a grid comes from
PARTS, ENDS, _GRID = (tl.constexpr(n) for n in range(3))

_WITH_ZERO = tl.constexpr(int(Rule.WITH_ZERO))
_SYMMETRIC = tl.constexpr(int(Rule.SYMMETRIC))  # and from here on
_POWER = tl.constexpr(int(Rule.POWER))


class Layout(NamedTuple):
    """The memory of a tensor, and the tile (channels, positions) of it that a program reads."""

    channels: int
    inner: int
    length: int  # of a channel: outer * inner
    tile_channels: int
    tile_length: int

    @classmethod
    def of(cls, x: Tensor, keep: int | None) -> "Layout":
        """keep: the dimension of the channels; x: dense."""
        size = x.numel()
        channels = 1 if keep is None else x.shape[keep]
        inner = size if keep is None or channels == 1 or size == 0 else x.stride(keep)
        length = size // max(channels, 1)
        # neighbours in memory are of one channel, or of several
        tile_length = min(_BLOCK, triton.next_power_of_2(max(1, min(inner, length))))
        tile_channels = min(_BLOCK // tile_length, triton.next_power_of_2(max(1, channels)))
        whole = triton.next_power_of_2(max(1, length))
        tile_length = max(tile_length, min(_BLOCK // tile_channels, whole))
        return cls(channels, inner, length, tile_channels, tile_length)

    @property
    def num_tiles(self) -> int:
        """Tiles along the channels."""
        return -(-self.channels // self.tile_channels)

    @property
    def num_chunks(self) -> int:
        """Tiles along a channel."""
        return -(-self.length // self.tile_length)

    @property
    def constants(self) -> dict[str, int | bool]:
        """What kernels are compiled for."""
        return {
            "IS_OUTER_ONE": self.length <= self.inner,
            "C": self.tile_channels,
            "L": self.tile_length,
        }


def _keep_of(x: Tensor, scale: Tensor) -> int | None:
    """The dimension that a scale or range has one value for each index of."""
    return None if scale.numel() == 1 else scale.shape.index(scale.numel())


@triton.jit
def _address(c, i, channels, inner, IS_OUTER_ONE: tl.constexpr):
    """Where position i of channel c is in memory."""
    if IS_OUTER_ONE:
        return c * inner + i
    return (i // inner * channels + c) * inner + i % inner


# -- ranges ---------------------------------------------------------------------------------------


@triton.jit
def _range(
    x, parts, channels, inner, length, num_parts, num_chunks,
    IS_OUTER_ONE: tl.constexpr, C: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Write [-min, max] of a part of C channels to (2, channels, num_parts)."""
    part = tl.program_id(0) % num_parts
    c = (tl.program_id(0) // num_parts * C + tl.arange(0, C)).to(tl.int64)[:, None]
    minus_low = tl.full([C, L], float("-inf"), tl.float32)
    high = tl.full([C, L], float("-inf"), tl.float32)
    for chunk in range(part, num_chunks, num_parts):
        i = tl.cast(chunk, tl.int64) * L + tl.arange(0, L)[None, :]
        is_inside = (c < channels) & (i < length)
        at = _address(c, i, channels, inner, IS_OUTER_ONE)
        v = tl.load(x + at, mask=is_inside, other=0.0).to(tl.float32)
        minus_low = max_nan(minus_low, tl.where(is_inside, -v, float("-inf")))
        high = max_nan(high, tl.where(is_inside, v, float("-inf")))
    to = parts + c * num_parts + part
    tl.store(to, reduce_max(minus_low, 1), mask=c < channels)
    tl.store(to + tl.cast(channels, tl.int64) * num_parts, reduce_max(high, 1), mask=c < channels)


@triton.jit
def join(parts, c, channels, num_parts, P: tl.constexpr):
    """The ranges of channels c (C, 1) from those of their parts; of zeros with both signs, 0."""
    p = tl.arange(0, P)[None, :]
    is_inside = (c < channels) & (p < num_parts)
    at = parts + c * num_parts + p
    other = float("-inf")
    minus_low = reduce_max(tl.load(at, mask=is_inside, other=other), 1)
    at += tl.cast(channels, tl.int64) * num_parts
    return -minus_low + 0.0, reduce_max(tl.load(at, mask=is_inside, other=other), 1) + 0.0


@triton.jit
def _join_range(parts, low, high, channels, num_parts, P: tl.constexpr, C: tl.constexpr):
    c = (tl.program_id(0) * C + tl.arange(0, C)).to(tl.int64)[:, None]
    lowest, highest = join(parts, c, channels, num_parts, P)
    tl.store(low + c, lowest, mask=c < channels)
    tl.store(high + c, highest, mask=c < channels)


def partial_ranges(x: Tensor, keep: int | None = None) -> Tensor | None:
    """[-min, max] of parts of a tensor that is not empty: (2, channels, parts), NaN for a NaN.

    The maximum of the parts of several processes has the range of all their tensors.
    """
    layout = Layout.of(x, keep)
    num_parts = max(1, min(MAX_PARTS // layout.num_tiles, layout.num_chunks // _STEPS))
    parts = x.new_empty((2, layout.channels, num_parts), dtype=torch.float32)
    is_done = launch(
        _range, layout.num_tiles * num_parts, x, parts, *layout[:3], num_parts, layout.num_chunks,
        **layout.constants,
    )  # fmt: skip
    return parts if is_done else None


def value_range(x: Tensor, keep: int | None = None) -> tuple[Tensor, Tensor] | None:
    """The lowest and highest value of a tensor that is not empty, or of each index of `keep`."""
    parts = partial_ranges(x, keep)
    return None if parts is None else _join_parts(x, keep, parts)


def _join_parts(x: Tensor, keep: int | None, parts: Tensor) -> tuple[Tensor, Tensor] | None:
    low, high = _new_range(x, keep)
    _, channels, num_parts = parts.shape
    size = triton.next_power_of_2(num_parts)
    tile = max(1, min(_BLOCK // size, triton.next_power_of_2(channels)))
    programs = triton.cdiv(channels, tile)
    is_done = launch(_join_range, programs, parts, low, high, channels, num_parts, P=size, C=tile)
    return (low, high) if is_done else None


def _new_range(x: Tensor, keep: int | None) -> tuple[Tensor, Tensor]:
    shape = [] if keep is None else [n if d == keep else 1 for d, n in enumerate(x.shape)]
    low = x.new_empty(shape, dtype=torch.float32)
    return low, torch.empty_like(low)


# -- grids ----------------------------------------------------------------------------------------


@triton.jit
def num_steps(levels):
    """From 0 to the largest magnitude of a symmetric grid."""
    return tl.where(levels == 1, 0.5, (levels + 1) * 0.5 - 1)


@triton.jit
def make_grid(low, high, levels, floor, RULE: tl.constexpr):
    """scale, offset, and whether there are steps: if not, every value is exactly the offset."""
    if RULE >= _SYMMETRIC:
        step = divide(max_nan(tl.abs(low), tl.abs(high)), num_steps(levels))
        if RULE == _POWER:
            step = power_above(step)
        scale = step + (step == 0).to(tl.float32)
        offset = -tl.where(levels == 1, step * 0.5, scale * ((levels + 1) * 0.5))
        has_steps = tl.where(levels == 1, step, 1.0) != 0
    else:
        if RULE == _WITH_ZERO:
            low = tl.where(low > 0, 0.0, low)
            high = tl.where(high < 0, 0.0, high)
        scale = divide(high - low, levels)
        scale = tl.where((floor > 0) & (scale < floor), floor, scale)
        scale += (scale == 0).to(tl.float32)
        offset = low
        if RULE == _WITH_ZERO:
            offset = -rint(divide(-low, scale)) * scale
        has_steps = high != low
    return scale, offset, has_steps


@triton.jit
def make_code(v, scale, offset, levels, max_steps, number, k0, k1,
               IS_SYMMETRIC: tl.constexpr, KEY: tl.constexpr):  # fmt: skip
    """The whole number of steps above the offset, as a float; NaN for a NaN."""
    if IS_SYMMETRIC:
        limit = scale * max_steps
        v = min_nan(max_nan(v, -limit), limit)
    u = divide(v - offset, scale)
    if KEY != NO_KEY:
        u = u + uniform(number, k0, k1)
    return rint(min_nan(max_nan(u, 0.0), levels))


@triton.jit
def _encode(
    x, out, source, source2, levels_at, floor, key,
    scale_out, offset_out, half_out, low_out, high_out,
    channels, inner, length, num_parts, num_chunks,
    SOURCE: tl.constexpr, RULE: tl.constexpr, KEY: tl.constexpr, IS_CODES: tl.constexpr,
    IS_OUTER_ONE: tl.constexpr, C: tl.constexpr, L: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Round a tile of the tensor; the first program of each tile of channels writes their grids.

    source: parts of ranges, or lowest values and scales with highest values and offsets in source2.
    """
    chunk = tl.program_id(0) % num_chunks
    c = (tl.program_id(0) // num_chunks * C + tl.arange(0, C)).to(tl.int64)[:, None]
    levels = tl.load(levels_at).to(tl.float32)
    if SOURCE == PARTS:
        low, high = join(source, c, channels, num_parts, P)
    else:
        low = tl.load(source + c, mask=c < channels, other=0.0)
        high = tl.load(source2 + c, mask=c < channels, other=0.0)
    if SOURCE == _GRID:
        scale, offset = low, high
    else:
        scale, offset, has_steps = make_grid(low, high, levels, floor, RULE)
        if chunk == 0:
            stored = tl.where(has_steps, scale, scale * 0.0) if IS_CODES else scale
            tl.store(scale_out + c, stored, mask=c < channels)
            tl.store(offset_out + c, offset, mask=c < channels)
            if SOURCE == PARTS:
                tl.store(low_out + c, low, mask=c < channels)
                tl.store(high_out + c, high, mask=c < channels)
            if tl.program_id(0) == 0:
                tl.store(half_out, (levels + 1) * 0.5)
    i = chunk.to(tl.int64) * L + tl.arange(0, L)[None, :]
    is_inside = (c < channels) & (i < length)
    at = _address(c, i, channels, inner, IS_OUTER_ONE)
    v = tl.load(x + at, mask=is_inside, other=0.0).to(tl.float32)
    k0 = 0
    k1 = 0
    if KEY != NO_KEY:
        k0, k1 = load_key(key, KEY)
    q = make_code(v, scale, offset, levels, num_steps(levels), at, k0, k1,
                   SOURCE != _GRID and RULE >= _SYMMETRIC, KEY)  # fmt: skip
    if IS_CODES:
        q = tl.where(q == q, q, 0.0)  # a NaN has no code; the scale shows it
        tl.store(out + at, q.to(tl.int32).to(tl.uint8), mask=is_inside)
    else:
        tl.store(out + at, to_dtype(q * scale + offset, out.dtype.element_ty), mask=is_inside)


def round_to_grid(
    x: Tensor,
    scale: Tensor,
    offset: Tensor,
    levels: Tensor,
    key: Tensor | None,
    dtype: torch.dtype,
) -> Tensor | None:
    """Values (a float dtype) or codes (uint8) on the grid; key: for stochastic rounding."""
    out = torch.empty_like(x, dtype=dtype)
    layout = Layout.of(x, _keep_of(x, scale))
    is_done = launch(
        _encode, layout.num_tiles * layout.num_chunks, x, out, scale, offset, levels, 0.0, key,
        None, None, None, None, None, *layout[:3], 1, layout.num_chunks,
        SOURCE=_GRID.value, RULE=0, KEY=key_kind(key), IS_CODES=dtype is torch.uint8, P=1,
        **layout.constants,
    )  # fmt: skip
    return out if is_done else None


def quantize(
    x: Tensor,
    within: tuple[Tensor, Tensor] | Tensor | int | None,
    levels: Tensor,
    rule: Rule,
    *,
    floor: float = 0.0,
    key: Tensor | None = None,
    dtype: torch.dtype,
) -> OnGrid | None:
    """The grid of a range, and the tensor on it.

    within: the range, the `partial_ranges`, or `keep` of `value_range` for the tensor's own.
    levels: int32. key: two words, or a clock [base, step, call]. dtype: uint8 or a float dtype.
    """
    found = find_source(x, within)
    if found is None:
        return None
    parts, low, high, keep = found
    out = torch.empty_like(x, dtype=dtype)
    scale, half = torch.empty_like(low), x.new_empty((), dtype=torch.float32)
    offset = low if rule is Rule.FROM_LOW and parts is not None else torch.empty_like(low)
    layout = Layout.of(x, keep)
    num_parts = 1 if parts is None else parts.shape[2]
    is_done = launch(
        _encode, layout.num_tiles * max(1, layout.num_chunks), x, out,
        low if parts is None else parts, high, levels, floor, key,
        scale, offset, half, low, high, *layout[:3], num_parts, max(1, layout.num_chunks),
        SOURCE=(ENDS if parts is None else PARTS).value, RULE=int(rule), KEY=key_kind(key),
        IS_CODES=dtype is torch.uint8, P=triton.next_power_of_2(num_parts), **layout.constants,
    )  # fmt: skip
    return OnGrid(out, scale, offset, half, low, high) if is_done else None


def find_source(
    x: Tensor, within: tuple[Tensor, Tensor] | Tensor | int | None
) -> tuple[Tensor | None, Tensor, Tensor, int | None] | None:
    """Parts of ranges or None, lowest and highest values to read or to write, their dimension."""
    if isinstance(within, tuple):
        return None, *within, _keep_of(x, within[0])
    if not isinstance(within, Tensor):
        parts = partial_ranges(x, within)
        if parts is None:
            return None
        if Layout.of(x, within).tile_channels * parts.shape[2] > _BLOCK:
            # too many for every program to read
            ends = _join_parts(x, within, parts)
            return None if ends is None else (None, *ends, within)
        return parts, *_new_range(x, within), within
    channels = within.shape[1]
    keep = None if channels == 1 else x.shape.index(channels)
    return within, *_new_range(x, keep), keep


def key_kind(key: Tensor | None) -> int:
    if key is None:
        return int(NO_KEY.value)
    return int((WORDS if key.numel() == 2 else CLOCK).value)


# -- values of codes ------------------------------------------------------------------------------


@triton.jit
def _decode(
    codes, out, scale, offset, channels, inner, length, num_chunks,
    IS_OUTER_ONE: tl.constexpr, C: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    c = (tl.program_id(0) // num_chunks * C + tl.arange(0, C)).to(tl.int64)[:, None]
    i = (tl.program_id(0) % num_chunks).to(tl.int64) * L + tl.arange(0, L)[None, :]
    is_inside = (c < channels) & (i < length)
    at = _address(c, i, channels, inner, IS_OUTER_ONE)
    q = tl.load(codes + at, mask=is_inside, other=0).to(tl.float32)
    s = tl.load(scale + c, mask=c < channels, other=0.0)
    tl.store(out + at, q * s + tl.load(offset + c, mask=c < channels, other=0.0), mask=is_inside)


def decode(codes: Tensor, scale: Tensor, offset: Tensor) -> Tensor | None:
    """The values code * scale + offset of uint8 codes."""
    out = torch.empty_like(codes, dtype=torch.float32)
    layout = Layout.of(codes, _keep_of(codes, scale))
    is_done = launch(
        _decode, layout.num_tiles * layout.num_chunks, codes, out, scale, offset, *layout[:3],
        layout.num_chunks, **layout.constants,
    )  # fmt: skip
    return out if is_done else None


# -- a layer's buffers ----------------------------------------------------------------------------


@triton.jit
def _noise_key(clock, key):
    k0, k1 = key_words(clock)
    tl.store(key, k0.to(tl.int32, bitcast=True))
    tl.store(key + 1, k1.to(tl.int32, bitcast=True))


def noise_key(clock: Tensor) -> Tensor | None:
    """The two words of a key, from [base, step, call] (int32, contiguous)."""
    key = clock.new_empty(2)
    return key if launch(_noise_key, 1, clock, key) else None


@triton.jit
def _count_up(numbers, copy, place, count, N: tl.constexpr):
    i = tl.arange(0, N)
    old = tl.load(numbers + i, mask=i < count, other=0)
    new = tl.where(i == place, old + 1, old)
    tl.store(copy + i, new, mask=i < count)
    tl.store(numbers + i, new, mask=i == place)


def count_up(numbers: Tensor, place: int) -> Tensor | None:
    """Add 1 to one of several int32 numbers in place and return a copy of all."""
    copy = torch.empty_like(numbers)
    count = numbers.numel()
    size = triton.next_power_of_2(count)
    return copy if launch(_count_up, 1, numbers, copy, place, count, N=size) else None


@triton.jit
def _flag_nonfinite(flags, low, high, place, count, N: tl.constexpr):
    total = tl.zeros([N], tl.float32)
    for start in range(0, count, N):
        i = start + tl.arange(0, N)
        a = tl.load(low + i, mask=i < count, other=0.0)
        total += (tl.load(high + i, mask=i < count, other=0.0) - a) * 0.0
    tl.store(flags + place, tl.load(flags + place) + tl.sum(total, 0))


def flag_nonfinite(flags: Tensor, place: int, low: Tensor, high: Tensor) -> bool:
    """Turn one of several float32 flags NaN if a range (contiguous) is not finite."""
    count = low.numel()
    size = min(_BLOCK, triton.next_power_of_2(max(1, count)))
    return launch(_flag_nonfinite, 1, flags, low, high, place, count, N=size)


@triton.jit
def _observe(rows, flags, low, high, place, flag, momentum, HAS_FLAG: tl.constexpr):
    row = rows + 3 * place
    lowest = tl.load(low)
    spread = tl.load(high) - lowest
    is_finite = spread * 0.0 == 0.0
    if HAS_FLAG:
        tl.store(flags + flag, float("nan"), mask=spread * 0.0 != 0.0)
    count = tl.load(row) + 1
    share = tl.where(momentum == 0, divide(1.0, count),
                     tl.where(count > 1, momentum, 1.0))  # fmt: skip
    old_low, old_spread = tl.load(row + 1), tl.load(row + 2)
    tl.store(row, count, mask=is_finite)
    tl.store(row + 1, old_low + share * (lowest - old_low), mask=is_finite)
    tl.store(row + 2, old_spread + share * (spread - old_spread), mask=is_finite)


def observe(
    rows: Tensor,
    place: int,
    low: Tensor,
    high: Tensor,
    momentum: float,
    flags: Tensor | None = None,
    flag: int = 0,
) -> bool:
    """Update the row [observations, lowest value, range] of a (rows, 3) tensor by a new range.

    flags: one of them turns NaN if the range is not finite.
    """
    return launch(
        _observe, 1, rows, flags, low, high, place, flag, momentum, HAS_FLAG=flags is not None
    )


# -- packed codes ---------------------------------------------------------------------------------


@triton.jit
def _pack_nibbles(codes, packed, count, L: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * L + tl.arange(0, L)
    low = tl.load(codes + 2 * i, mask=2 * i < count, other=0)
    high = tl.load(codes + 2 * i + 1, mask=2 * i + 1 < count, other=0)
    tl.store(packed + i, (low & 15) | (high << 4), mask=2 * i < count)


def pack_nibbles(codes: Tensor) -> Tensor | None:
    """Codes of at most 4 bits in memory order, two per byte."""
    count = codes.numel()
    out = codes.new_empty((count + 1) // 2)
    programs = triton.cdiv(out.numel(), _BLOCK)
    return out if launch(_pack_nibbles, programs, codes, out, count, L=_BLOCK) else None


@triton.jit
def _unpack_nibbles(packed, codes, count, L: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * L + tl.arange(0, L)
    byte = tl.load(packed + i // 2, mask=i < count, other=0)
    tl.store(codes + i, tl.where(i % 2 == 0, byte & 15, byte >> 4), mask=i < count)


def unpack_nibbles(packed: Tensor, out: Tensor) -> Tensor | None:
    """Write the codes of `pack_nibbles` to `out`, uint8, in memory order."""
    count = out.numel()
    programs = triton.cdiv(count, _BLOCK)
    return out if launch(_unpack_nibbles, programs, packed, out, count, L=_BLOCK) else None
