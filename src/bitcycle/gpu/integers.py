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

A product takes two launches: one lays out or folds, one multiplies. Pixels of maps whose channels
are not the innermost in memory are read and written where they are, each map as a batch.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from bitcycle.gpu.arithmetic import centre, divide, rint, to_dtype
from bitcycle.gpu.driver import launch
from bitcycle.native.products import Codes

# |code - z| is at most 255: sums of so many products fit in 32 bits, longer ones are of chunks
MAX_SUMMED = 32768
_STEP = 64  # of the summed axis in a product; laid out operands are padded to a multiple
_GROUP = tl.constexpr(8)  # rows of tiles whose operands stay in the cache

_RAISE = tl.constexpr(2.0**96)  # for scales whose product would underflow
_LOWER = tl.constexpr(2.0**-96)
_TINY = tl.constexpr(2.0**-64)

_ROWS = 64  # of the tile of a layout
_SPAN = 512  # of the summed axis that a program lays out, and whose numbers it adds up
_FOLDED_ROWS, _FOLDED_STEP = 32, 256  # the tile of a fold


class Operand(NamedTuple):
    """Codes as a product reads them."""

    numbers: Tensor  # (batches, rows, summed), int8, contiguous, padded by zeros
    sums: Tensor  # (batches, spans, rows), int32
    grid: Tensor  # (3, 1 or rows), float32: scale, 128 - z and residual


class Folded(NamedTuple):
    """An operand (rows, summed) in 16 bits: value = (256 high + low) unit lower."""

    high: Tensor  # int8, padded by zeros
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
_LARGE, _SMALL = Tile(128, 64, 8), Tile(64, 64, 4)
_LARGE_FOLDED, _SMALL_FOLDED, _LONG_FOLDED = Tile(128, 64, 8), Tile(64, 32, 4), Tile(64, 32, 8)
_FULL = 128  # large tiles of a product that keep a GPU busy


# -- operands -------------------------------------------------------------------------------------


@triton.jit
def _lay_out_tile(
    codes, out, sums, scale, offset, grid, program, length, width, inner,
    rows, batch_stride, row_stride, outer_step, step, row_tiles, num_scales,
    IS_SPLIT: tl.constexpr, SPAN: tl.constexpr, R: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Write R rows of a span of the summed axis, the sums of their numbers, and their grids.

    IS_SPLIT: the summed axis is two, the inner one of this length.
    """
    spans = tl.cdiv(width, SPAN)
    span = program % spans
    batch = (program // (spans * row_tiles)).to(tl.int64)
    r = (program // spans % row_tiles * R + tl.arange(0, R)).to(tl.int64)[:, None]
    total = tl.zeros([R, K], tl.int32)
    for start in range(span * SPAN, tl.minimum(width, (span + 1) * SPAN), K):
        k = tl.cast(start, tl.int64) + tl.arange(0, K)[None, :]
        at = batch * batch_stride + r * row_stride
        if IS_SPLIT:
            within = start + tl.arange(0, K)[None, :]  # 32 bits: division is slow
            at += (within // inner).to(tl.int64) * outer_step
            at += (within % inner).to(tl.int64) * step
        else:
            at += k * step
        number = tl.load(codes + at, mask=(r < rows) & (k < length), other=128).to(tl.int32) - 128
        total += number
        tl.store(out + (batch * rows + r) * width + k, number.to(tl.int8), mask=r < rows)
    to = sums + (batch * spans + span) * rows + r
    tl.store(to, tl.sum(total, 1, keep_dims=True), mask=r < rows)
    if (span == 0) & (batch == 0):
        has_scale = r < num_scales
        s = tl.load(scale + r, mask=has_scale, other=0.0)
        z, residual = centre(s, tl.load(offset + r, mask=has_scale, other=0.0))
        tl.store(grid + r, s, mask=has_scale)
        tl.store(grid + num_scales + r, 128.0 - z, mask=has_scale)
        tl.store(grid + 2 * num_scales + r, residual, mask=has_scale)


@triton.jit
def _lay_out(
    x, x_out, x_sums, x_scale, x_offset, x_grid, y, y_out, y_sums, y_scale, y_offset, y_grid,
    length, width, inner, first,
    x_rows, x_batch, x_row, x_outer, x_step, x_tiles, x_scales,
    y_rows, y_batch, y_row, y_outer, y_step, y_tiles, y_scales,
    IS_SPLIT: tl.constexpr, SPAN: tl.constexpr, R: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    if program < first:
        _lay_out_tile(x, x_out, x_sums, x_scale, x_offset, x_grid, program,
                      length, width, inner,
                      x_rows, x_batch, x_row, x_outer, x_step, x_tiles, x_scales,
                      IS_SPLIT, SPAN, R, K)  # fmt: skip
    else:
        _lay_out_tile(y, y_out, y_sums, y_scale, y_offset, y_grid, program - first,
                      length, width, inner,
                      y_rows, y_batch, y_row, y_outer, y_step, y_tiles, y_scales,
                      IS_SPLIT, SPAN, R, K)  # fmt: skip


def lay_out(x: Codes, y: Codes) -> tuple[Operand, Operand] | None:
    """Both operands from codes (rows, summed), or with batches in front, in any strides.

    Codes of four dimensions (batches, rows, outer, inner) are summed over the last two.
    """
    both = [_with_batches(each.codes) for each in (x, y)]
    outer, inner = both[0].shape[2:]
    length = outer * inner
    is_split = outer > 1 and any(c.stride(2) != inner * c.stride(3) for c in both)
    width = triton.cdiv(length, _STEP) * _STEP
    spans = triton.cdiv(width, _SPAN)
    operands, tensors, sizes, programs = [], [], [], []
    for each, codes in zip((x, y), both, strict=True):
        (batches, rows), num_scales = codes.shape[:2], each.scale.numel()
        operand = Operand(
            codes.new_empty((batches, rows, width), dtype=torch.int8),
            codes.new_empty((batches, spans, rows), dtype=torch.int32),
            each.scale.new_empty((3, num_scales)),
        )
        row_tiles = triton.cdiv(rows, _ROWS)
        operands.append(operand)
        tensors += [codes, operand.numbers, operand.sums, each.scale, each.offset, operand.grid]
        sizes += [rows, *codes.stride(), row_tiles, num_scales]
        programs.append(batches * row_tiles * spans)
    is_done = launch(
        _lay_out, sum(programs), *tensors, length, width, inner, programs[0], *sizes,
        IS_SPLIT=is_split, SPAN=_SPAN, R=_ROWS, K=_STEP,
    )  # fmt: skip
    return (operands[0], operands[1]) if is_done else None


def _with_batches(codes: Tensor) -> Tensor:
    """(batches, rows, outer, inner)."""
    if codes.dim() == 4:
        return codes
    codes = codes.unsqueeze(-2)
    return codes if codes.dim() == 4 else codes.unsqueeze(0)


@triton.jit
def _raise_of(largest):
    return tl.where((largest > 0) & (largest < _TINY), _RAISE, 1.0)


@triton.jit
def _lower_of(raised):
    return tl.where(raised == 1.0, 1.0, _LOWER)


@triton.jit
def _value(codes, scale, offset, raised, n, k, rows, length, row_stride, step):
    """Values (n, k) in float32, 0 outside."""
    is_inside = (n < rows) & (k < length)
    code = tl.load(codes + n * row_stride + k * step, mask=is_inside, other=0).to(tl.float32)
    s = tl.load(scale + k, mask=k < length, other=0.0) * raised
    value = s * code + tl.load(offset + k, mask=k < length, other=0.0) * raised
    return tl.where(is_inside, value, 0.0)


@triton.jit
def _fold(
    codes, scale, offset, high, low, sums, unit_out, lower_out,
    rows, length, width, row_stride, step, R: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    n = (tl.program_id(0) * R + tl.arange(0, R)).to(tl.int64)[:, None]
    largest = tl.zeros([1, K], tl.float32)
    for start in range(0, length, K):
        k = tl.cast(start, tl.int64) + tl.arange(0, K)[None, :]
        # a grid's values are at most 255 steps from its offset
        s = tl.abs(tl.load(scale + k, mask=k < length, other=0.0))
        o = tl.abs(tl.load(offset + k, mask=k < length, other=0.0))
        largest = tl.maximum(largest, tl.maximum(s, o))
    raised = _raise_of(tl.max(largest, 1, keep_dims=True))
    # as bits: NaN is larger than all others, and so is not lost
    peak = tl.zeros([R, K], tl.int32)
    for start in range(0, length, K):
        k = tl.cast(start, tl.int64) + tl.arange(0, K)[None, :]
        v = _value(codes, scale, offset, raised, n, k, rows, length, row_stride, step)
        peak = tl.maximum(peak, tl.abs(v).to(tl.int32, bitcast=True))
    top = tl.max(peak, 1, keep_dims=True).to(tl.float32, bitcast=True)
    is_finite = top * 0 == 0
    per_unit = tl.where(is_finite & (top > 1e-30), divide(32639.0, top), 0.0)
    high_total = tl.zeros([R, K], tl.int32)
    low_total = tl.zeros([R, K], tl.int32)
    for start in range(0, width, K):
        k = tl.cast(start, tl.int64) + tl.arange(0, K)[None, :]
        v = _value(codes, scale, offset, raised, n, k, rows, length, row_stride, step) * per_unit
        v = tl.where(v * 0 == 0, v, 0.0)  # what is not finite shows in the unit
        q = tl.where(v < 0, -rint(-v), rint(v)).to(tl.int32)
        q = tl.minimum(tl.maximum(q, -32639), 32639)
        rest = ((q + 128) & 255) - 128
        upper = (q - rest) >> 8
        high_total += upper
        low_total += rest
        is_inside = (n < rows) & (k < width)
        tl.store(high + n * width + k, upper.to(tl.int8), mask=is_inside)
        tl.store(low + n * width + k, rest.to(tl.int8), mask=is_inside)
    tl.store(sums + n, tl.sum(high_total, 1, keep_dims=True), mask=n < rows)
    tl.store(sums + rows + n, tl.sum(low_total, 1, keep_dims=True), mask=n < rows)
    tl.store(unit_out + n, divide(top, 32639.0), mask=n < rows)
    if tl.program_id(0) == 0:
        tl.store(lower_out + tl.zeros([1, 1], tl.int32), _lower_of(raised))


def fold(y: Codes) -> Folded | None:
    """Codes (rows, summed) with a scale for each index of the summed axis."""
    rows, length = y.codes.shape
    width = triton.cdiv(length, _STEP) * _STEP
    high = y.codes.new_empty((rows, width), dtype=torch.int8)
    low = torch.empty_like(high)
    sums = high.new_empty((2, rows), dtype=torch.int32)
    unit = high.new_empty(rows, dtype=torch.float32)
    lower = high.new_empty((), dtype=torch.float32)
    is_done = launch(
        _fold, triton.cdiv(rows, _FOLDED_ROWS), y.codes, y.scale, y.offset, high, low, sums, unit,
        lower, rows, length, width, *y.codes.stride(),
        R=_FOLDED_ROWS, K=_FOLDED_STEP, num_warps=8,
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
    return m[:, None], n[None, :]


@triton.jit
def _load_each(x, r, rows, HAS_ROWS: tl.constexpr):
    """One number, or those of rows r."""
    return tl.load(x + r, mask=r < rows, other=0.0) if HAS_ROWS else tl.load(x)


@triton.jit
def _add_products(acc, x, y, start, end, m, n, M, N, BK: tl.constexpr):
    """acc plus the products of rows x and y from start to end."""
    for k in range(start, end, BK):
        at = k + tl.arange(0, BK)
        a = tl.load(x + at[None, :], mask=m < M, other=0)
        b = tl.load(y + at[:, None], mask=n < N, other=0)
        acc = tl.dot(a, b, acc, out_dtype=tl.int32)
    return acc


@triton.jit
def _sum_spans(sums, spans, rows, r):
    """The sums of rows r over the whole summed axis."""
    total = tl.load(sums + r, mask=r < rows, other=0)
    for _ in range(1, spans):
        sums += rows
        total += tl.load(sums + r, mask=r < rows, other=0)
    return total


@triton.jit
def _multiply(
    x, y, out, x_sums, y_sums, x_grid, y_grid, bias,
    M, N, K, width, spans, tiles, y_batch, out_batch, out_row, out_column,
    X_ROWS: tl.constexpr, Y_ROWS: tl.constexpr, HAS_BIAS: tl.constexpr, CHUNK: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """CHUNK: of a sum that does not fit in 32 bits; 0 if it does. y_batch: N, or 0 for one y."""
    batch = (tl.program_id(0) // tiles).to(tl.int64)
    m, n = _place(tl.program_id(0) % tiles, M, N, BM, BN)
    x += (batch * M + m) * width
    y += (batch * y_batch + n) * width
    zero = tl.zeros([BM, BN], tl.int32)
    if CHUNK > 0:
        total = tl.zeros([BM, BN], tl.int64)
        for start in range(0, width, CHUNK):
            end = tl.minimum(width, start + CHUNK)
            total += _add_products(zero, x, y, start, end, m, n, M, N, BK)
    else:
        total = _add_products(zero, x, y, 0, width, m, n, M, N, BK)
    x_scales = M if X_ROWS else 1
    y_scales = N if Y_ROWS else 1
    dx = _load_each(x_grid + x_scales, m, M, X_ROWS).to(total.dtype)
    dy = _load_each(y_grid + y_scales, n, N, Y_ROWS).to(total.dtype)
    x_around = _sum_spans(x_sums + batch * spans * M, spans, M, m) + K * dx
    y_sum = _sum_spans(y_sums + batch * spans * y_batch, spans, N, n)
    total += dy * x_around + dx * y_sum  # 32 bits may be passed in between, and come back
    x_around = x_around.to(tl.float32)
    y_around = (y_sum + K * dy).to(tl.float32)
    tl.debug_barrier()  # what follows is not read before: it would not fit in registers
    sx = _load_each(x_grid, m, M, X_ROWS)
    sy = _load_each(y_grid, n, N, Y_ROWS)
    rx = _load_each(x_grid + 2 * x_scales, m, M, X_ROWS)
    ry = _load_each(y_grid + 2 * y_scales, n, N, Y_ROWS)
    x_raised = _raise_of(tl.maximum(tl.abs(sx), tl.abs(rx)))
    y_raised = tl.where(x_raised == 1.0, _raise_of(tl.maximum(tl.abs(sy), tl.abs(ry))), 1.0)
    sx, rx, sy, ry = sx * x_raised, rx * x_raised, sy * y_raised, ry * y_raised
    value = (sx * sy) * total.to(tl.float32) + (sx * ry) * x_around
    value += rx * (sy * y_around + ry * tl.cast(K, tl.float32))
    value *= _lower_of(x_raised * y_raised)
    if HAS_BIAS:
        value += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)
    value = to_dtype(value, out.dtype.element_ty)
    out += batch * out_batch + m.to(tl.int64) * out_row + n.to(tl.int64) * out_column
    tl.store(out, value, mask=(m < M) & (n < N))


def multiply(
    x: Codes,
    y: Codes,
    bias: Tensor | None = None,
    dtype: torch.dtype | None = None,
    *,
    is_turned: bool = False,
) -> Tensor | None:
    """(M, K) x (N, K) -> x y^T (+ bias), with batches in front of x or of both.

    Scales: one, or one per row. dtype: what float32 is rounded to in the end. is_turned: the rows
    of the result are the innermost in memory. Codes of four dimensions: see `lay_out`.
    """
    found = lay_out(x, y)
    if found is None:
        return None
    a, b = found
    (batches, M, width), (y_batches, N, _) = a.numbers.shape, b.numbers.shape
    K = x.codes.shape[-1] if x.codes.dim() < 4 else x.codes.shape[-2:].numel()
    out = _empty(x.scale, (batches, M, N), dtype, is_turned)
    is_long = K > MAX_SUMMED
    has_x_rows, has_y_rows = x.scale.numel() > 1, y.scale.numel() > 1
    large = (
        _SMALL if is_long or (has_x_rows and has_y_rows) else _LARGE
    )  # of what fits in registers
    tile = _tile(large, _SMALL, batches, M, N)
    tiles = triton.cdiv(M, tile.rows) * triton.cdiv(N, tile.columns)
    is_done = launch(
        _multiply, batches * tiles, a.numbers, b.numbers, out, a.sums, b.sums, a.grid, b.grid,
        bias, M, N, K, width, a.sums.shape[1], tiles,
        N if y_batches == batches else 0, *out.stride(),
        X_ROWS=has_x_rows, Y_ROWS=has_y_rows, HAS_BIAS=bias is not None,
        CHUNK=MAX_SUMMED if is_long else 0, BM=tile.rows, BN=tile.columns, BK=_STEP,
        num_warps=tile.warps,
    )  # fmt: skip
    if not is_done:
        return None
    return out.squeeze(0) if x.codes.dim() == 2 else out


def _empty(
    like: Tensor, shape: tuple[int, int, int], dtype: torch.dtype | None, is_turned: bool
) -> Tensor:
    """(batches, rows, columns), with the rows innermost in memory if it is turned."""
    batches, rows, columns = shape
    if is_turned:
        return like.new_empty((batches, columns, rows), dtype=dtype).mT
    return like.new_empty(shape, dtype=dtype)


@triton.jit
def _add_folded(
    upper, rest, x, high, low, start, end, m, n, M, N, K, step, BK: tl.constexpr
):  # fmt: skip
    """upper and rest plus the products of rows x with both planes, from start to end."""
    for k in range(start, end, BK):
        at = k + tl.arange(0, BK)
        codes = tl.load(
            x + at.to(tl.int64)[None, :] * step, mask=(m < M) & (at[None, :] < K), other=128
        )
        a = (codes ^ 128).to(tl.int8, bitcast=True)  # code - 128
        upper = tl.dot(a, tl.load(high + at[:, None], mask=n < N, other=0), upper)
        rest = tl.dot(a, tl.load(low + at[:, None], mask=n < N, other=0), rest)
    return upper, rest


@triton.jit
def _multiply_folded(
    x, high, low, out, x_scale, x_offset, unit, lower, sums, M, N, K, width, tiles,
    batch_stride, row_stride, step, out_batch, out_row, out_column,
    CHUNK: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    batch = (tl.program_id(0) // tiles).to(tl.int64)
    x += batch * batch_stride
    out += batch * out_batch
    m, n = _place(tl.program_id(0) % tiles, M, N, BM, BN)
    m64 = m.to(tl.int64)
    x += m64 * row_stride
    high += n.to(tl.int64) * width
    low += n.to(tl.int64) * width
    zero = tl.zeros([BM, BN], tl.int32)
    if CHUNK > 0:
        upper = tl.zeros([BM, BN], tl.int64)
        rest = tl.zeros([BM, BN], tl.int64)
        for start in range(0, width, CHUNK):
            end = tl.minimum(width, start + CHUNK)
            some, others = _add_folded(
                zero, zero, x, high, low, start, end, m, n, M, N, K, step, BK
            )
            upper += some
            rest += others
    else:
        upper, rest = _add_folded(zero, zero, x, high, low, 0, width, m, n, M, N, K, step, BK)
    sx = tl.load(x_scale)
    z, rx = centre(sx, tl.load(x_offset))
    d = (128.0 - z).to(upper.dtype)
    high_sum = tl.load(sums + n, mask=n < N, other=0)
    low_sum = tl.load(sums + N + n, mask=n < N, other=0)
    total = (upper + d * high_sum).to(tl.float32) * 256.0
    total += (rest + d * low_sum).to(tl.float32)
    y_lower = tl.load(lower)
    raised = tl.where(y_lower == 1.0, _raise_of(tl.maximum(tl.abs(sx), tl.abs(rx))), 1.0)
    u = tl.load(unit + n, mask=n < N, other=0.0)
    y_sum = high_sum.to(tl.float32) * 256.0 + low_sum.to(tl.float32)
    value = ((sx * raised) * u) * total + ((rx * raised) * u) * y_sum
    value *= y_lower * _lower_of(raised)
    value = to_dtype(value, out.dtype.element_ty)
    out += m64 * out_row + n.to(tl.int64) * out_column
    tl.store(out, value, mask=(m < M) & (n < N))


def multiply_folded(
    x: Codes, y: Codes, dtype: torch.dtype | None = None, *, is_turned: bool = False
) -> Tensor | None:
    """(M, K) with one scale x (N, K) with a scale for each k -> x y^T, or with batches before M.

    x is read where it is. dtype, is_turned: as for `multiply`.
    """
    folded = fold(y)
    if folded is None:
        return None
    codes = x.codes if x.codes.dim() == 3 else x.codes.unsqueeze(0)
    (batches, M, K), (N, width) = codes.shape, folded.high.shape
    out = _empty(x.scale, (batches, M, N), dtype, is_turned)
    is_long = K > MAX_SUMMED
    tile = _LONG_FOLDED if is_long else _tile(_LARGE_FOLDED, _SMALL_FOLDED, batches, M, N)
    tiles = triton.cdiv(M, tile.rows) * triton.cdiv(N, tile.columns)
    is_done = launch(
        _multiply_folded, batches * tiles, codes,
        folded.high, folded.low, out, x.scale, x.offset, folded.unit, folded.lower, folded.sums,
        M, N, K, width, tiles, *codes.stride(), *out.stride(), CHUNK=MAX_SUMMED if is_long else 0,
        BM=tile.rows, BN=tile.columns, BK=_STEP, num_warps=tile.warps,
    )  # fmt: skip
    if not is_done:
        return None
    return out.squeeze(0) if x.codes.dim() == 2 else out


def _tile(large: Tile, small: Tile, batches: int, M: int, N: int) -> Tile:
    is_full = batches * triton.cdiv(M, large.rows) * triton.cdiv(N, large.columns) >= _FULL
    return large if is_full and small.rows < M else small
