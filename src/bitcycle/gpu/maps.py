"""Operands and results of convolutions in bfloat16: see `kernels.convolutions`.

Each function is one launch, and returns None where a kernel cannot run. Maps (N, C, *space) are
read as (N, C, P), with all their positions along P.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from bitcycle.gpu.arithmetic import centre as centre_of
from bitcycle.gpu.arithmetic import divide, rint, to_dtype
from bitcycle.gpu.driver import FLOATS, launch

_BLOCK = 2048  # elements of a tile
_RESULTS = 1024  # of a result that a program writes


@triton.jit
def _centre(
    codes, out, sums, scale, offset, kept, reduced, positions,
    kept_stride, reduced_stride, step, out_kept, out_reduced, out_step, second,
    HAS_SCALES: tl.constexpr, IS_KEPT_LAST: tl.constexpr, OF_VALUES: tl.constexpr,
    IS_DOUBLED: tl.constexpr, T: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Centre T series along the reduced dimension, and write the sum of each."""
    t = tl.program_id(0).to(tl.int64) * T + tl.arange(0, T)[:, None]
    if IS_KEPT_LAST:  # in memory
        k, p = t % kept, t // kept
    else:
        k, p = t // positions, t % positions
    is_series = t < kept * positions
    at = k if HAS_SCALES else k * 0
    s = tl.load(scale + at, mask=is_series, other=0.0)
    z, residual = centre_of(s, tl.load(offset + at, mask=is_series, other=0.0))
    codes += k * kept_stride + p * step
    out += k * out_kept + p * out_step
    total = tl.zeros([T, R], tl.float32)
    for start in range(0, reduced, R):
        r = tl.cast(start, tl.int64) + tl.arange(0, R)[None, :]
        is_inside = is_series & (r < reduced)
        code = tl.load(codes + r * reduced_stride, mask=is_inside, other=0).to(tl.float32)
        x = tl.where(is_inside, code - z, 0.0)
        total += x
        tl.store(out + r * out_reduced, x.to(tl.bfloat16), mask=is_inside)
        if IS_DOUBLED:
            tl.store(out + second + r * out_reduced, x.to(tl.bfloat16), mask=is_inside)
    if not IS_DOUBLED:
        result = tl.sum(total, 1, keep_dims=True)
        if OF_VALUES:
            result = s * result + residual * tl.cast(reduced, tl.float32)
        tl.store(sums + k * positions + p, result, mask=is_series)


def _layout_of(x: Tensor) -> torch.memory_format:
    """Channels-last for a tensor that is not contiguous; other strides are not read."""
    if x.is_contiguous():
        return torch.contiguous_format
    return torch.channels_last if x.dim() == 4 else torch.channels_last_3d


def centre(
    codes: Tensor, scale: Tensor, offset: Tensor, dim: int, of_values: bool, is_doubled: bool
) -> tuple[Tensor, Tensor] | None:
    """Centred codes in bfloat16, and sums over dimension 0 or 1, of them or of the values.

    scale: one, or one for each index of the other one of these dimensions.
    """
    layout = _layout_of(codes)
    shape = list(codes.shape)
    sums = scale.new_empty([1 if d == dim else n for d, n in enumerate(shape)])
    shape[1] *= 2 if is_doubled else 1
    out = torch.empty(shape, dtype=torch.bfloat16, device=codes.device, memory_format=layout)
    x, y = codes.flatten(2), out.flatten(2)
    kept, reduced, positions = x.shape[1 - dim], x.shape[dim], x.shape[2]
    length = min(64 if x.stride(dim) == 1 else 8, triton.next_power_of_2(reduced))
    series = min(_BLOCK // length, 256)
    is_done = launch(
        _centre, triton.cdiv(kept * positions, series), x, y, sums, scale, offset,
        kept, reduced, positions, *(each.stride(d) for each in (x, y) for d in (1 - dim, dim, 2)),
        x.shape[1] * y.stride(1), HAS_SCALES=scale.numel() > 1,
        IS_KEPT_LAST=dim == 0 and layout is not torch.contiguous_format,
        OF_VALUES=of_values, IS_DOUBLED=is_doubled, T=series, R=length,
    )  # fmt: skip
    return (out, sums) if is_done else None


@triton.jit
def _value(codes, scale, offset, o, is_inside):
    """Values in float32, 0 outside."""
    code = tl.load(codes, mask=is_inside, other=0).to(tl.float32)
    s = tl.load(scale + o, mask=is_inside, other=0.0)
    return tl.where(is_inside, code * s + tl.load(offset + o, mask=is_inside, other=0.0), 0.0)


@triton.jit
def _fold_weight(
    codes, planes, unit_out, scale, offset, outer, channels, positions,
    stride, channel_stride, step, out_stride, out_channel, out_step, second,
    R: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Fold R input channels: their largest magnitudes, then their whole numbers."""
    c = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    codes += c * channel_stride
    planes += c * out_channel
    # as bits: NaN is larger than all others, and so is not lost
    peak = tl.zeros([R, K], tl.int32)
    for start in range(0, outer * positions, K):
        k = start + tl.arange(0, K)[None, :]
        o, p = k // positions, k % positions
        is_inside = (c < channels) & (o < outer)
        v = _value(codes + o * stride + p * step, scale, offset, o, is_inside)
        peak = tl.maximum(peak, tl.abs(v).to(tl.int32, bitcast=True))
    top = tl.max(peak, 1, keep_dims=True).to(tl.float32, bitcast=True)
    unit = divide(top, 32639.0)
    tl.store(unit_out + c, unit, mask=c < channels)
    for start in range(0, outer * positions, K):
        k = start + tl.arange(0, K)[None, :]
        o, p = k // positions, k % positions
        is_inside = (c < channels) & (o < outer)
        v = divide(_value(codes + o * stride + p * step, scale, offset, o, is_inside), unit)
        v = tl.where(v * 0 == 0, v, 0.0)  # what is not finite shows in the unit
        v = tl.minimum(tl.maximum(v, -32639.0), 32639.0)
        q = tl.where(v < 0, -rint(-v), rint(v)).to(tl.int32)
        low = ((q + 128) & 255) - 128
        to = planes + o * out_stride + p * out_step
        tl.store(to, (q - low).to(tl.float32).to(tl.bfloat16), mask=is_inside)
        tl.store(to + second, low.to(tl.float32).to(tl.bfloat16), mask=is_inside)


def fold(codes: Tensor, scale: Tensor, offset: Tensor) -> tuple[Tensor, Tensor] | None:
    """Planes (2 out, in, *k), 256 high before low, and the unit (1, in, ...)."""
    layout = _layout_of(codes)
    outer, channels, *space = codes.shape
    unit = scale.new_empty((1, channels, *[1] * len(space)))
    planes = torch.empty(
        (2 * outer, channels, *space), dtype=torch.bfloat16, device=codes.device,
        memory_format=layout,
    )  # fmt: skip
    x, y = codes.flatten(2), planes.flatten(2)
    is_done = launch(
        _fold_weight, triton.cdiv(channels, 8), x, y, unit, scale, offset, *x.shape,
        *x.stride(), *y.stride(), outer * y.stride(0), R=8, K=256,
    )  # fmt: skip
    return (planes, unit) if is_done else None


@triton.jit
def _combine(
    sums, out, x_scale, x_offset, y_scale, y_offset, around, inside, bias,
    size, channels, positions, around_first, around_step, inside_channel, inside_step,
    HAS_SCALES: tl.constexpr, HAS_AROUND: tl.constexpr, HAS_BIAS: tl.constexpr,
    ARE_CHANNELS_LAST: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64) * L + tl.arange(0, L)
    is_inside = i < size
    if ARE_CHANNELS_LAST:
        c, p, n = i % channels, i // channels % positions, i // channels // positions
    else:
        p, c, n = i % positions, i // positions % channels, i // positions // channels
    at = c if HAS_SCALES else c * 0
    sx = tl.load(x_scale)
    _, rx = centre_of(sx, tl.load(x_offset))
    sy = tl.load(y_scale + at, mask=is_inside, other=0.0)
    result = tl.load(sums + i, mask=is_inside, other=0.0).to(tl.float32) * sx * sy
    to = inside + c * inside_channel + p * inside_step
    result += rx * tl.load(to, mask=is_inside, other=0.0)
    if HAS_AROUND:
        _, ry = centre_of(sy, tl.load(y_offset + at, mask=is_inside, other=0.0))
        to = around + n * around_first + p * around_step
        result += tl.load(to, mask=is_inside, other=0.0) * (sx * ry)
    if HAS_BIAS:
        result += tl.load(bias + c, mask=is_inside, other=0.0).to(tl.float32)
    tl.store(out + i, to_dtype(result, out.dtype.element_ty), mask=is_inside)


def combine(
    sums: Tensor,
    x_scale: Tensor,
    x_offset: Tensor,
    y_scale: Tensor,
    y_offset: Tensor | None,
    around: Tensor | None,
    inside: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype | None = None,
) -> Tensor | None:
    """sx sy sums + sx ry around + rx inside (+ bias); r: residuals. Scales of y: one or C.

    dtype: what float32 is rounded to in the end, if the kernel writes it.
    """
    layout = _layout_of(sums)
    out = torch.empty_like(sums, dtype=dtype if dtype in FLOATS else torch.float32)
    around = None if around is None else around.flatten(2)
    inside = inside.flatten(2)
    around_strides = (0, 0) if around is None else (around.stride(0), around.stride(2))
    is_done = launch(
        _combine, triton.cdiv(sums.numel(), _RESULTS), sums, out, x_scale, x_offset,
        y_scale, y_offset, around, inside, bias, sums.numel(), sums.shape[1], inside.shape[2],
        *around_strides, inside.stride(1), inside.stride(2),
        HAS_SCALES=y_scale.numel() > 1, HAS_AROUND=around is not None, HAS_BIAS=bias is not None,
        ARE_CHANNELS_LAST=layout is not torch.contiguous_format, L=_RESULTS,
    )  # fmt: skip
    return out if is_done else None
