"""Around bfloat16 products of centred codes: the fold of a weight, and the results of sums.

With values s X + r on both sides, a product is made of sums of codes:

    sum (sx X + rx)(sw W + rw) = sx sw S + sx rw sum(X) + rx (sw sum(W) + K rw),   S = sum X W

A weight with a scale per row n, in a product that sums over n, is folded: its values become 16-bit
whole numbers with one unit per column k, as `native.products.gemm_folded` does, split into two
planes that bfloat16 holds exactly. An element of the result is off by at most
2^-16 max|w[:, k]| sum|x|, besides the rounding of float32.

    w[n, k] = unit[k] (256 hi + lo),   unit[k] = max_n |w[n, k]| / 32767

Tiny values (below 2^-64) are multiplied by 2^96 first, and results brought back at the end.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from bitcycle.gpu.arithmetic import divide, rint, to_dtype
from bitcycle.gpu.driver import launch

_RAISE = tl.constexpr(2.0**96)
_LOWER = tl.constexpr(2.0**-96)
_TINY = tl.constexpr(2.0**-64)
_SUMMED, _COLUMNS = 32, 32  # the tile of a fold
_TILE = 1024  # elements of a result that a program writes, and their columns
_WIDTH = 128


class Folded(NamedTuple):
    """A weight (N, K) in 16 bits: value = (256 high + low) unit lower."""

    high: Tensor  # (N, K), bfloat16
    low: Tensor
    unit: Tensor  # (K,), float32
    lower: Tensor  # 1, or 2^-96 for a weight of tiny values
    sums: Tensor  # (K,), float32: of 256 high + low over n


@triton.jit
def _raise_of(largest):
    return tl.where((largest > 0) & (largest < _TINY), _RAISE, 1.0)


@triton.jit
def _lower_of(raised):
    return tl.where(raised == 1.0, 1.0, _LOWER)


@triton.jit
def _values(codes, scale, residual, raised, n, k, N, K, HAS_ROWS: tl.constexpr):
    """The values (n, k) of a weight, 0 behind its last row."""
    c = n if HAS_ROWS else n * 0
    code = tl.load(codes + n * K + k, mask=(n < N) & (k < K), other=0.0).to(tl.float32)
    s = tl.load(scale + c, mask=n < N, other=0.0) * raised
    return s * code + tl.load(residual + c, mask=n < N, other=0.0) * raised


@triton.jit
def _fold(
    codes, scale, residual, high, low, unit_out, lower_out, sums, N, K,
    HAS_ROWS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    k = (tl.program_id(0) * BK + tl.arange(0, BK)).to(tl.int64)[None, :]
    largest = tl.zeros([BN, 1], tl.float32)
    for start in range(0, N if HAS_ROWS else 1, BN):
        n = tl.cast(start, tl.int64) + tl.arange(0, BN)[:, None]
        is_inside = n < (N if HAS_ROWS else 1)
        s = tl.abs(tl.load(scale + n, mask=is_inside, other=0.0))
        r = tl.abs(tl.load(residual + n, mask=is_inside, other=0.0))
        largest = tl.maximum(largest, tl.maximum(s, r))
    raised = _raise_of(tl.max(largest, 0, keep_dims=True))
    # as bits: NaN is larger than all others, and so is not lost
    peak = tl.zeros([BN, BK], tl.int32)
    for start in range(0, N, BN):
        n = tl.cast(start, tl.int64) + tl.arange(0, BN)[:, None]
        v = _values(codes, scale, residual, raised, n, k, N, K, HAS_ROWS)
        peak = tl.maximum(peak, tl.abs(v).to(tl.int32, bitcast=True))
    top = tl.max(peak, 0, keep_dims=True).to(tl.float32, bitcast=True)
    per_unit = tl.where(top > 1e-30, divide(tl.where(top == top, 32767.0, top), top), 0.0)
    total = tl.zeros([BN, BK], tl.float32)
    for start in range(0, N, BN):
        n = tl.cast(start, tl.int64) + tl.arange(0, BN)[:, None]
        is_inside = (n < N) & (k < K)
        v = _values(codes, scale, residual, raised, n, k, N, K, HAS_ROWS) * per_unit
        v = tl.where(v == v, v, 0.0)  # a NaN shows in the unit
        q = tl.where(v < 0, -rint(-v), rint(v)).to(tl.int32)
        rest = ((q + 128) & 255) - 128
        total += tl.where(is_inside, q.to(tl.float32), 0.0)
        tl.store(high + n * K + k, ((q - rest) >> 8).to(tl.float32).to(tl.bfloat16), mask=is_inside)
        tl.store(low + n * K + k, rest.to(tl.float32).to(tl.bfloat16), mask=is_inside)
    tl.store(unit_out + k, divide(top, tl.where(top == top, 32767.0, top)), mask=k < K)
    tl.store(sums + k, tl.sum(total, 0, keep_dims=True), mask=k < K)
    if tl.program_id(0) == 0:
        tl.store(lower_out + tl.zeros([1, 1], tl.int32), _lower_of(raised))


def fold(codes: Tensor, scale: Tensor, residual: Tensor) -> Folded | None:
    """The fold of centred codes (N, K), contiguous, with one scale and residual or N of them."""
    N, K = codes.shape
    high, low = torch.empty_like(codes), torch.empty_like(codes)
    unit = codes.new_empty(K, dtype=torch.float32)
    sums, lower = torch.empty_like(unit), codes.new_empty((), dtype=torch.float32)
    is_done = launch(
        _fold, triton.cdiv(K, _COLUMNS), codes, scale, residual, high, low, unit, lower, sums, N, K,
        HAS_ROWS=scale.numel() > 1, BN=_SUMMED, BK=_COLUMNS,
    )  # fmt: skip
    return Folded(high, low, unit, lower, sums) if is_done else None


# -- results --------------------------------------------------------------------------------------


@triton.jit
def _place(N, M, BM: tl.constexpr, BN: tl.constexpr):
    """The rows and columns of a program's tile."""
    across = tl.cdiv(N, BN)
    m = (tl.program_id(0) // across * BM + tl.arange(0, BM)).to(tl.int64)[:, None]
    return m, (tl.program_id(0) % across * BN + tl.arange(0, BN)).to(tl.int64)[None, :]


@triton.jit
def _finish(
    sums, out, x_scale, x_residual, x_sums, w_scale, w_residual, w_sums, bias, M, N, K,
    X_ROWS: tl.constexpr, W_ROWS: tl.constexpr, HAS_BIAS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    m, n = _place(N, M, BM, BN)
    at_m = m if X_ROWS else m * 0
    at_n = n if W_ROWS else n * 0
    sx = tl.load(x_scale + at_m, mask=m < M, other=0.0)
    rx = tl.load(x_residual + at_m, mask=m < M, other=0.0)
    sw = tl.load(w_scale + at_n, mask=n < N, other=0.0)
    rw = tl.load(w_residual + at_n, mask=n < N, other=0.0)
    x_raised = _raise_of(tl.maximum(tl.abs(sx), tl.abs(rx)))
    w_raised = tl.where(x_raised == 1.0, _raise_of(tl.maximum(tl.abs(sw), tl.abs(rw))), 1.0)
    sx, rx, sw, rw = sx * x_raised, rx * x_raised, sw * w_raised, rw * w_raised
    x_sum = tl.load(x_sums + m, mask=m < M, other=0.0)
    w_sum = tl.load(w_sums + n, mask=n < N, other=0.0)
    is_inside = (m < M) & (n < N)
    total = tl.load(sums + m * N + n, mask=is_inside, other=0.0)
    constant = rx * (sw * w_sum + rw * tl.cast(K, tl.float32))
    value = (sx * sw) * total + ((sx * rw) * x_sum + constant)
    value *= _lower_of(x_raised * w_raised)
    if HAS_BIAS:
        value += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)
    tl.store(out + m * N + n, to_dtype(value, out.dtype.element_ty), mask=is_inside)


def finish(
    sums: Tensor,
    x: tuple[Tensor, Tensor, Tensor],
    w: tuple[Tensor, Tensor, Tensor],
    num_summed: int,
    bias: Tensor | None = None,
    *,
    dtype: torch.dtype = torch.float32,
) -> Tensor | None:
    """The product of two operands from the float32 sums (M, N) of their centred codes.

    x, w: scale, residual (one, or M and N of them) and sums of codes (M and N). num_summed: K.
    """
    M, N = sums.shape
    out = torch.empty_like(sums, dtype=dtype)
    across = triton.cdiv(N, _WIDTH)
    height = _TILE // _WIDTH
    is_done = launch(
        _finish, triton.cdiv(M, height) * across, sums, out, *x, *w, bias, M, N, num_summed,
        X_ROWS=x[0].numel() > 1, W_ROWS=w[0].numel() > 1, HAS_BIAS=bias is not None,
        BM=height, BN=_WIDTH,
    )  # fmt: skip
    return out if is_done else None


@triton.jit
def _finish_folded(
    high, low, out, x_scale, x_residual, unit, lower, w_sums, M, K,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    m, k = _place(K, M, BM, BN)
    w_lower = tl.load(lower)
    sx, rx = tl.load(x_scale), tl.load(x_residual)
    raised = tl.where(w_lower == 1.0, _raise_of(tl.maximum(tl.abs(sx), tl.abs(rx))), 1.0)
    u = tl.load(unit + k, mask=k < K, other=0.0)
    is_inside = (m < M) & (k < K)
    total = tl.load(high + m * K + k, mask=is_inside, other=0.0) * 256.0
    total += tl.load(low + m * K + k, mask=is_inside, other=0.0)
    w_sum = tl.load(w_sums + k, mask=k < K, other=0.0)
    value = ((sx * raised) * u) * total + ((rx * raised) * u) * w_sum
    value *= w_lower * _lower_of(raised)
    tl.store(out + m * K + k, to_dtype(value, out.dtype.element_ty), mask=is_inside)


def finish_folded(
    high: Tensor,
    low: Tensor,
    x: tuple[Tensor, Tensor],
    w: Folded,
    *,
    dtype: torch.dtype = torch.float32,
) -> Tensor | None:
    """The product with a folded weight, from float32 sums (M, K) with its two planes.

    x: one scale and residual of the other operand, whose centred codes were multiplied.
    """
    M, K = high.shape
    out = torch.empty_like(high, dtype=dtype)
    height = _TILE // _WIDTH
    programs = triton.cdiv(M, height) * triton.cdiv(K, _WIDTH)
    is_done = launch(
        _finish_folded, programs, high, low, out, *x, w.unit, w.lower, w.sums, M, K,
        BM=height, BN=_WIDTH,
    )  # fmt: skip
    return out if is_done else None
