"""Centred codes: whole numbers around 0 that bfloat16 holds exactly, as operands of its products.

    z = clamp(rint(-offset / scale), 0, levels),  X = code - z in [-255, 255]
    value = scale X + residual,  residual = offset + scale z

The residual is at most half a step where 0 is inside the range, and 0 on a symmetric grid. The sum
of (s X + r) over a row needs the sum of X, which is written along with the codes.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from bitcycle.gpu.arithmetic import NO_KEY, divide, load_key, rint
from bitcycle.gpu.driver import launch
from bitcycle.gpu.grids import (
    ENDS,
    PARTS,
    find_source,
    join,
    key_kind,
    make_code,
    make_grid,
    num_steps,
)
from bitcycle.native.encode import Rule

_SYMMETRIC = tl.constexpr(int(Rule.SYMMETRIC))  # and from here on
_COLUMNS = 256  # of a tile
_SQUARE = 32  # rows and columns of a tile that is also written transposed


class Centred(NamedTuple):
    """A tensor as centred codes: value = scale * codes + residual."""

    codes: Tensor  # bfloat16
    transposed: Tensor | None  # the same, (columns, rows)
    sums: Tensor  # float32: of the codes of each row
    scale: Tensor  # of the tensor or of each index of its first dimension; 0 if constant
    residual: Tensor
    low: Tensor
    high: Tensor


@triton.jit
def _encode_centred(
    x, out, transposed, sums, source, source2, levels_at, floor, key,
    scale_out, residual_out, low_out, high_out,
    channels, rows, columns, rows_per_channel, num_parts,
    SOURCE: tl.constexpr, RULE: tl.constexpr, KEY: tl.constexpr, HAS_CHANNELS: tl.constexpr,
    IS_TRANSPOSED: tl.constexpr, R: tl.constexpr, L: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Round R whole rows; the program of a channel's first row writes its grid."""
    r = (tl.program_id(0) * R + tl.arange(0, R)).to(tl.int64)[:, None]
    c = tl.zeros([1, 1], tl.int64)
    if HAS_CHANNELS:
        c = tl.minimum(r // rows_per_channel, channels - 1)
    levels = tl.load(levels_at).to(tl.float32)
    if SOURCE == PARTS:
        low, high = join(source, c, channels, num_parts, P)
    else:
        low, high = tl.load(source + c), tl.load(source2 + c)
    scale, offset, has_steps = make_grid(low, high, levels, floor, RULE)
    z = tl.minimum(tl.maximum(rint(divide(-offset, scale)), 0.0), levels)
    z = tl.where(has_steps, z, 0.0)
    stored = tl.where(has_steps, scale, scale * 0.0)
    is_first = (r < rows) & (r == c * rows_per_channel)
    to = c + 0 * r
    tl.store(scale_out + to, stored, mask=is_first)
    tl.store(residual_out + to, offset + stored * z, mask=is_first)
    if SOURCE == PARTS:
        tl.store(low_out + to, low, mask=is_first)
        tl.store(high_out + to, high, mask=is_first)
    k0 = 0
    k1 = 0
    if KEY != NO_KEY:
        k0, k1 = load_key(key, KEY)
    total = tl.zeros([R, L], tl.float32)
    for start in range(0, columns, L):
        k = tl.cast(start, tl.int64) + tl.arange(0, L)[None, :]
        is_inside = (r < rows) & (k < columns)
        at = r * columns + k
        v = tl.load(x + at, mask=is_inside, other=0.0).to(tl.float32)
        q = make_code(v, scale, offset, levels, num_steps(levels), at, k0, k1,
                      RULE >= _SYMMETRIC, KEY)  # fmt: skip
        q = tl.where(is_inside, tl.where(q == q, q, 0.0) - z, 0.0)  # a NaN shows in the scale
        total += q
        code = q.to(tl.bfloat16)
        tl.store(out + at, code, mask=is_inside)
        if IS_TRANSPOSED:
            tl.store(transposed + k * rows + r, code, mask=is_inside)
    tl.store(sums + r, tl.sum(total, 1, keep_dims=True), mask=r < rows)


def quantize_centred(
    x: Tensor,
    within: tuple[Tensor, Tensor] | Tensor | int | None,
    levels: Tensor,
    rule: Rule,
    *,
    floor: float = 0.0,
    key: Tensor | None = None,
    transposes: bool = False,
) -> Centred | None:
    """The centred codes of a contiguous tensor of at least one dimension that is not empty.

    Arguments as in `grids.quantize`; levels: at most 255; a range of channels is one of the first
    dimension. Sums are exact: their magnitude is below 2^24 for rows of up to 65,793 elements.
    """
    found = find_source(x, within)
    if found is None:
        return None
    parts, low, high, keep = found
    assert x.is_contiguous(), x.stride()
    assert keep in (None, 0), keep
    columns = x.shape[-1]
    rows = x.numel() // columns
    out = torch.empty_like(x, dtype=torch.bfloat16)
    transposed = out.new_empty((columns, rows)) if transposes else None
    scale, residual = torch.empty_like(low), torch.empty_like(low)
    sums = x.new_empty(x.shape[:-1], dtype=torch.float32)
    channels, num_parts = low.numel(), 1 if parts is None else parts.shape[2]
    length = _SQUARE if transposes else min(_COLUMNS, triton.next_power_of_2(columns))
    height = min(_SQUARE, 1024 // length)
    is_done = launch(
        _encode_centred, triton.cdiv(rows, height), x, out, transposed, sums,
        low if parts is None else parts, high, levels, floor, key, scale, residual, low, high,
        channels, rows, columns, rows // channels, num_parts,
        SOURCE=(ENDS if parts is None else PARTS).value, RULE=int(rule), KEY=key_kind(key),
        HAS_CHANNELS=channels > 1, IS_TRANSPOSED=transposes, R=height, L=length,
        P=triton.next_power_of_2(num_parts),
    )  # fmt: skip
    return Centred(out, transposed, sums, scale, residual, low, high) if is_done else None
