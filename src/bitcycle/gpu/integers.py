"""Products of codes on tensor cores: int8 operands, exact integer sums, grids in the epilogue.

Codes 0 to 255 are laid out as X = code - 128, with the summed axis last. With z the code of the
value 0 (or the nearest end of the grid), a value is s (X + d) + r, where d = 128 - z and the
residual r = offset + s z is at most half a step if 0 is in the range. So that nothing large
cancels in float32, sums are brought to the codes around zero as integers:

    S' = sum (X + dx)(Y + dy) = S + dy sum(X) + dx sum(Y) + K dx dy,   X' = sum (X + dx)
    sum of values = sx sy S' + sx ry X' + rx (sy Y' + K ry)

A scale on the summed axis, such as the weight's per output channel in grad_input, is folded: the
values become 16-bit whole numbers with one unit per result channel, as two planes of int8:

    y[n, k] = unit[n] (256 high + low),   unit[n] = max_k |y[n, k]| / 32639

which moves a result by at most 2^-15.99 max|y[n, :]| sum|x|, besides the rounding of float32.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from bitcycle.gpu.arithmetic import divide, rint, to_dtype
from bitcycle.gpu.driver import launch
from bitcycle.native.products import Codes

# sums of up to so many products of codes around zero, 255 x 255 or 255 x 128, fit in 32 bits
_LONG = 32768
_CHUNK = tl.constexpr(32768)
_GROUP = tl.constexpr(8)  # rows of tiles whose operands stay in the cache

_RAISE = tl.constexpr(2.0**96)  # for scales whose product would underflow
_LOWER = tl.constexpr(2.0**-96)
_TINY = tl.constexpr(2.0**-64)

_ROWS, _DEPTH = 64, 64  # the tile of a layout
_SPAN = 4096  # of the summed axis that a program lays out


class Operand(NamedTuple):
    """Codes as a product reads them."""

    numbers: Tensor  # (batches, rows, summed), int8, contiguous
    sums: Tensor | None  # (batches, rows), int32
    scale: Tensor
    offset: Tensor


class Folded(NamedTuple):
    """An operand (rows, summed) in 16 bits: value = (256 high + low) unit lower."""

    high: Tensor  # int8
    low: Tensor
    sums: Tensor  # (2, rows), int32: of both planes
    unit: Tensor  # (rows,), float32
    lower: Tensor  # 1, or 2^-96 where all values are tiny


class Tile(NamedTuple):
    """What a program computes of a product, and with how many warps."""

    rows: int
    columns: int
    warps: int


# chosen by what compiles without spilling: see benchmarks/gpu_kernels.py
_LARGE, _SMALL = Tile(128, 128, 8), Tile(64, 64, 4)
_LARGE_FOLDED, _SMALL_FOLDED = Tile(128, 64, 8), Tile(64, 32, 4)
_STEP = 64  # of the summed axis
_FULL = 128  # large tiles of a product that keep a GPU busy


# -- operands -------------------------------------------------------------------------------------


@triton.jit
def _lay_out(
    codes, out, sums, rows, length, batch_stride, row_stride, step, row_tiles, spans,
    HAS_SUMS: tl.constexpr, IS_SPLIT: tl.constexpr,
    SPAN: tl.constexpr, R: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    span = tl.program_id(0) % spans
    batch = (tl.program_id(0) // (spans * row_tiles)).to(tl.int64)
    r = (tl.program_id(0) // spans % row_tiles * R + tl.arange(0, R)).to(tl.int64)[:, None]
    total = tl.zeros([R, K], tl.int32)
    for start in range(span * SPAN, tl.minimum(length, (span + 1) * SPAN), K):
        k = tl.cast(start, tl.int64) + tl.arange(0, K)[None, :]
        is_inside = (r < rows) & (k < length)
        at = batch * batch_stride + r * row_stride + k * step
        number = tl.load(codes + at, mask=is_inside, other=128).to(tl.int32) - 128
        total += number
        tl.store(out + (batch * rows + r) * length + k, number.to(tl.int8), mask=is_inside)
    if HAS_SUMS:
        to = sums + batch * rows + r
        if IS_SPLIT:
            tl.atomic_add(to, tl.sum(total, 1, keep_dims=True), mask=r < rows)
        else:
            tl.store(to, tl.sum(total, 1, keep_dims=True), mask=r < rows)


def lay_out(x: Codes, *, has_sums: bool = True) -> Operand | None:
    """Codes (rows, summed), or with batches in front, in any strides."""
    codes = x.codes if x.codes.dim() == 3 else x.codes.unsqueeze(0)
    batches, rows, length = codes.shape
    out = torch.empty_like(codes, dtype=torch.int8, memory_format=torch.contiguous_format)
    row_tiles, spans = triton.cdiv(rows, _ROWS), triton.cdiv(length, _SPAN)
    sums = None
    if has_sums:
        make = torch.zeros if spans != 1 else torch.empty
        sums = make((batches, rows), dtype=torch.int32, device=codes.device)
    is_done = launch(
        _lay_out, batches * row_tiles * spans, codes, out, sums, rows, length,
        *codes.stride(), row_tiles, spans,
        HAS_SUMS=has_sums, IS_SPLIT=spans > 1, SPAN=_SPAN, R=_ROWS, K=_DEPTH,
    )  # fmt: skip
    return Operand(out, sums, x.scale, x.offset) if is_done else None


@triton.jit
def _raise_of(largest):
    return tl.where((largest > 0) & (largest < _TINY), _RAISE, 1.0)


@triton.jit
def _lower_of(raised):
    return tl.where(raised == 1.0, 1.0, _LOWER)


@triton.jit
def _value(codes, scale, offset, raised, n, k, rows, length, row_stride, step,
           HAS_STEPS: tl.constexpr):  # fmt: skip
    """Values (n, k) in float32, 0 outside."""
    is_inside = (n < rows) & (k < length)
    c = k if HAS_STEPS else k * 0
    code = tl.load(codes + n * row_stride + k * step, mask=is_inside, other=0).to(tl.float32)
    s = tl.load(scale + c, mask=k < length, other=0.0) * raised
    value = s * code + tl.load(offset + c, mask=k < length, other=0.0) * raised
    return tl.where(is_inside, value, 0.0)


@triton.jit
def _fold(
    codes, scale, offset, high, low, sums, unit_out, lower_out, rows, length, row_stride, step,
    HAS_STEPS: tl.constexpr, R: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    n = (tl.program_id(0) * R + tl.arange(0, R)).to(tl.int64)[:, None]
    largest = tl.zeros([1, K], tl.float32)
    for start in range(0, length if HAS_STEPS else 1, K):
        k = tl.cast(start, tl.int64) + tl.arange(0, K)[None, :]
        is_inside = k < (length if HAS_STEPS else 1)
        # a grid's values are at most 255 steps from its offset
        s = tl.abs(tl.load(scale + k, mask=is_inside, other=0.0))
        o = tl.abs(tl.load(offset + k, mask=is_inside, other=0.0))
        largest = tl.maximum(largest, tl.maximum(s, o))
    raised = _raise_of(tl.max(largest, 1, keep_dims=True))
    # as bits: NaN is larger than all others, and so is not lost
    peak = tl.zeros([R, K], tl.int32)
    for start in range(0, length, K):
        k = tl.cast(start, tl.int64) + tl.arange(0, K)[None, :]
        v = _value(codes, scale, offset, raised, n, k, rows, length, row_stride, step, HAS_STEPS)
        peak = tl.maximum(peak, tl.abs(v).to(tl.int32, bitcast=True))
    top = tl.max(peak, 1, keep_dims=True).to(tl.float32, bitcast=True)
    per_unit = tl.where(top > 1e-30, divide(tl.where(top == top, 32639.0, top), top), 0.0)
    high_total = tl.zeros([R, K], tl.int32)
    low_total = tl.zeros([R, K], tl.int32)
    for start in range(0, length, K):
        k = tl.cast(start, tl.int64) + tl.arange(0, K)[None, :]
        v = _value(codes, scale, offset, raised, n, k, rows, length, row_stride, step, HAS_STEPS)
        v *= per_unit
        v = tl.where(v == v, v, 0.0)  # a NaN shows in the unit
        q = tl.where(v < 0, -rint(-v), rint(v)).to(tl.int32)
        q = tl.minimum(tl.maximum(q, -32639), 32639)
        rest = ((q + 128) & 255) - 128
        upper = (q - rest) >> 8
        high_total += upper
        low_total += rest
        is_inside = (n < rows) & (k < length)
        tl.store(high + n * length + k, upper.to(tl.int8), mask=is_inside)
        tl.store(low + n * length + k, rest.to(tl.int8), mask=is_inside)
    tl.store(sums + n, tl.sum(high_total, 1, keep_dims=True), mask=n < rows)
    tl.store(sums + rows + n, tl.sum(low_total, 1, keep_dims=True), mask=n < rows)
    tl.store(unit_out + n, divide(top, tl.where(top == top, 32639.0, top)), mask=n < rows)
    if tl.program_id(0) == 0:
        tl.store(lower_out + tl.zeros([1, 1], tl.int32), _lower_of(raised))


def fold(y: Codes) -> Folded | None:
    """Codes (rows, summed) with one scale, or one for each index of the summed axis."""
    rows, length = y.codes.shape
    high = y.codes.new_empty((rows, length), dtype=torch.int8)
    low = torch.empty_like(high)
    sums = high.new_empty((2, rows), dtype=torch.int32)
    unit = high.new_empty(rows, dtype=torch.float32)
    lower = high.new_empty((), dtype=torch.float32)
    is_done = launch(
        _fold, triton.cdiv(rows, 16), y.codes, y.scale, y.offset, high, low, sums, unit, lower,
        rows, length, *y.codes.stride(), HAS_STEPS=y.scale.numel() > 1, R=16, K=64,
    )  # fmt: skip
    return Folded(high, low, sums, unit, lower) if is_done else None


# -- products -------------------------------------------------------------------------------------


@triton.jit
def _place(pid, M, N, BM: tl.constexpr, BN: tl.constexpr):
    """The rows and columns of a program's tile; neighbours share operands."""
    down, across = tl.cdiv(M, BM), tl.cdiv(N, BN)
    first = pid // (_GROUP * across) * _GROUP
    height = tl.minimum(down - first, _GROUP)
    within = pid % (_GROUP * across)
    m = (first + within % height) * BM + tl.arange(0, BM)
    n = within // height * BN + tl.arange(0, BN)
    return m.to(tl.int64)[:, None], n.to(tl.int64)[None, :]


@triton.jit
def _centre(scale, offset):
    """128 - z as an integer, and the residual, of grids."""
    z = rint(tl.minimum(tl.maximum(divide(-offset, scale), 0.0), 255.0))
    z = tl.where((scale == 0) | (scale != scale), 0.0, z)
    return (128.0 - z).to(tl.int32), offset + scale * z


@triton.jit
def _multiply(
    x, y, out, x_sums, y_sums, x_scale, x_offset, y_scale, y_offset, bias, M, N, K, tiles,
    X_ROWS: tl.constexpr, Y_ROWS: tl.constexpr, HAS_BIAS: tl.constexpr, IS_LONG: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    batch = (tl.program_id(0) // tiles).to(tl.int64)
    m, n = _place(tl.program_id(0) % tiles, M, N, BM, BN)
    x += (batch * M + m) * K
    y += (batch * N + n) * K
    acc = tl.zeros([BM, BN], tl.int32)
    if IS_LONG:
        total = tl.zeros([BM, BN], tl.int64)
        for start in range(0, K, _CHUNK):
            acc = tl.zeros([BM, BN], tl.int32)
            for k in range(start, tl.minimum(K, start + _CHUNK), BK):
                at = k + tl.arange(0, BK)
                a = tl.load(x + at[None, :], mask=(m < M) & (at[None, :] < K), other=0)
                b = tl.load(y + at[:, None], mask=(n < N) & (at[:, None] < K), other=0)
                acc = tl.dot(a, b, acc, out_dtype=tl.int32)
            total += acc
    else:
        for k in range(0, K, BK):
            at = k + tl.arange(0, BK)
            a = tl.load(x + at[None, :], mask=(m < M) & (at[None, :] < K), other=0)
            b = tl.load(y + at[:, None], mask=(n < N) & (at[:, None] < K), other=0)
            acc = tl.dot(a, b, acc, out_dtype=tl.int32)
        total = acc
    at_m = m if X_ROWS else m * 0
    at_n = n if Y_ROWS else n * 0
    sx = tl.load(x_scale + at_m, mask=m < M, other=0.0)
    sy = tl.load(y_scale + at_n, mask=n < N, other=0.0)
    dx, rx = _centre(sx, tl.load(x_offset + at_m, mask=m < M, other=0.0))
    dy, ry = _centre(sy, tl.load(y_offset + at_n, mask=n < N, other=0.0))
    x_sum = tl.load(x_sums + batch * M + m, mask=m < M, other=0)
    y_sum = tl.load(y_sums + batch * N + n, mask=n < N, other=0)
    if IS_LONG:
        dx = dx.to(tl.int64)
        dy = dy.to(tl.int64)
    total += dy * (x_sum + K * dx) + dx * y_sum  # may pass 32 bits in between, and comes back
    x_around = (x_sum + K * dx).to(tl.float32)
    y_around = (y_sum + K * dy).to(tl.float32)
    x_raised = _raise_of(tl.maximum(tl.abs(sx), tl.abs(rx)))
    y_raised = tl.where(x_raised == 1.0, _raise_of(tl.maximum(tl.abs(sy), tl.abs(ry))), 1.0)
    sx, rx, sy, ry = sx * x_raised, rx * x_raised, sy * y_raised, ry * y_raised
    constant = rx * (sy * y_around + ry * tl.cast(K, tl.float32))
    value = (sx * sy) * total.to(tl.float32) + ((sx * ry) * x_around + constant)
    value *= _lower_of(x_raised * y_raised)
    if HAS_BIAS:
        value += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)
    to = out + (batch * M + m) * N + n
    tl.store(to, to_dtype(value, out.dtype.element_ty), mask=(m < M) & (n < N))


def multiply(
    x: Operand, y: Operand, bias: Tensor | None = None, dtype: torch.dtype = torch.float32
) -> Tensor | None:
    """(batches, M, K) x (batches, N, K) -> x y^T (+ bias); scales: one, or one per row."""
    (batches, M, K), N = x.numbers.shape, y.numbers.shape[1]
    out = x.numbers.new_empty((batches, M, N), dtype=dtype)
    is_long = K > _LONG
    tile = _tile(_SMALL if is_long else _LARGE, _SMALL, batches, M, N)
    tiles = triton.cdiv(M, tile.rows) * triton.cdiv(N, tile.columns)
    is_done = launch(
        _multiply, batches * tiles, x.numbers, y.numbers, out, x.sums, y.sums, x.scale, x.offset,
        y.scale, y.offset, bias, M, N, K, tiles,
        X_ROWS=x.scale.numel() > 1, Y_ROWS=y.scale.numel() > 1, HAS_BIAS=bias is not None,
        IS_LONG=is_long, BM=tile.rows, BN=tile.columns, BK=_STEP, num_warps=tile.warps,
    )  # fmt: skip
    return out if is_done else None


@triton.jit
def _multiply_folded(
    x, high, low, out, x_scale, x_offset, unit, lower, sums, M, N, K,
    IS_LONG: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    m, n = _place(tl.program_id(0), M, N, BM, BN)
    x += m * K
    high += n * K
    low += n * K
    upper = tl.zeros([BM, BN], tl.int32)
    rest = tl.zeros([BM, BN], tl.int32)
    if IS_LONG:
        upper_total = tl.zeros([BM, BN], tl.int64)
        rest_total = tl.zeros([BM, BN], tl.int64)
        for start in range(0, K, _CHUNK):
            upper = tl.zeros([BM, BN], tl.int32)
            rest = tl.zeros([BM, BN], tl.int32)
            for k in range(start, tl.minimum(K, start + _CHUNK), BK):
                at = k + tl.arange(0, BK)
                a = tl.load(x + at[None, :], mask=(m < M) & (at[None, :] < K), other=0)
                is_inside = (n < N) & (at[:, None] < K)
                h = tl.load(high + at[:, None], mask=is_inside, other=0)
                upper = tl.dot(a, h, upper, out_dtype=tl.int32)
                b = tl.load(low + at[:, None], mask=is_inside, other=0)
                rest = tl.dot(a, b, rest, out_dtype=tl.int32)
            upper_total += upper
            rest_total += rest
    else:
        for k in range(0, K, BK):
            at = k + tl.arange(0, BK)
            a = tl.load(x + at[None, :], mask=(m < M) & (at[None, :] < K), other=0)
            is_inside = (n < N) & (at[:, None] < K)
            h = tl.load(high + at[:, None], mask=is_inside, other=0)
            upper = tl.dot(a, h, upper, out_dtype=tl.int32)
            b = tl.load(low + at[:, None], mask=is_inside, other=0)
            rest = tl.dot(a, b, rest, out_dtype=tl.int32)
        upper_total = upper
        rest_total = rest
    sx = tl.load(x_scale)
    d, rx = _centre(sx, tl.load(x_offset))
    if IS_LONG:
        d = d.to(tl.int64)
    high_sum = tl.load(sums + n, mask=n < N, other=0)
    low_sum = tl.load(sums + N + n, mask=n < N, other=0)
    total = (upper_total + d * high_sum).to(tl.float32) * 256.0
    total += (rest_total + d * low_sum).to(tl.float32)
    y_lower = tl.load(lower)
    raised = tl.where(y_lower == 1.0, _raise_of(tl.maximum(tl.abs(sx), tl.abs(rx))), 1.0)
    u = tl.load(unit + n, mask=n < N, other=0.0)
    y_sum = high_sum.to(tl.float32) * 256.0 + low_sum.to(tl.float32)
    value = ((sx * raised) * u) * total + ((rx * raised) * u) * y_sum
    value *= y_lower * _lower_of(raised)
    tl.store(out + m * N + n, to_dtype(value, out.dtype.element_ty), mask=(m < M) & (n < N))


def multiply_folded(
    x: Operand, y: Folded, dtype: torch.dtype = torch.float32
) -> Tensor | None:
    """(1, M, K) with one scale x (N, K) -> x y^T (M, N)."""
    (_, M, K), N = x.numbers.shape, y.high.shape[0]
    out = x.numbers.new_empty((M, N), dtype=dtype)
    is_long = K > _LONG
    tile = _tile(_SMALL_FOLDED if is_long else _LARGE_FOLDED, _SMALL_FOLDED, 1, M, N)
    is_done = launch(
        _multiply_folded, triton.cdiv(M, tile.rows) * triton.cdiv(N, tile.columns), x.numbers,
        y.high, y.low, out, x.scale, x.offset, y.unit, y.lower, y.sums, M, N, K,
        IS_LONG=is_long, BM=tile.rows, BN=tile.columns, BK=_STEP, num_warps=tile.warps,
    )  # fmt: skip
    return out if is_done else None


def _tile(large: Tile, small: Tile, batches: int, M: int, N: int) -> Tile:
    is_full = batches * triton.cdiv(M, large.rows) * triton.cdiv(N, large.columns) >= _FULL
    return large if is_full else small
