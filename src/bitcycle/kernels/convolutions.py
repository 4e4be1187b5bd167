"""Convolutions of codes as bfloat16 convolutions: centred codes are whole numbers that it holds.

    z = clamp(rint(-offset / scale), 0, 255),   X = code - z in [-255, 255]
    value = s X + r,   r = offset + s z, at most half a step where 0 is in the range

Padding is the value 0: X = 0 without r. A product B of two operands is therefore

    B(x, y) = sx sy B(X, Y) + sx ry B(X, 1) + rx B(1, y)

where 1 is a map of ones. Both corrections are float32 convolutions with one channel, because all
channels of a map of ones are alike. B(X, Y) is summed in float32 by the convolution and rounded
to bfloat16 once, as under autocast: it is off by at most 2^-8 of itself.

The weight of grad_input has its scales on the summed axis. Its values become 16-bit whole numbers
with one unit per input channel, in two planes that bfloat16 holds: value = unit (256 high + low).
One convolution sums both planes with the error given twice. This moves a result by at most 2^-15.99
of the largest value of the channel times the sum of the errors' magnitudes.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bitcycle.kernels.geometry import ConvGeometry
from bitcycle.kernels.simulate import FloatProducts
from bitcycle.ops.fused import can_multiply
from bitcycle.ops.layout import memory_layout
from bitcycle.quantizers.base import Quantized

_PEAK = 32639.0  # 127 * 256 + 127


class Centred(NamedTuple):
    """An operand as centred codes."""

    numbers: Tensor  # bfloat16, in the layout of the codes
    sums: Tensor  # float32, over a dimension that is 1: of the numbers, or of the values
    scale: Tensor
    offset: Tensor


def reason_against(geometry: ConvGeometry) -> str | None:
    """What of a convolution stays float32."""
    if geometry.transposed:
        return "a transposed convolution"
    return "a convolution in groups" if geometry.groups > 1 else None


@dataclass(frozen=True)
class CentredConvolutions:
    """The products of a convolution that is neither transposed nor in groups."""

    geometry: ConvGeometry

    def output(
        self, a: Quantized, w: Quantized, bias: Tensor | None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Input x weight (+ bias); the weight may have a scale per output channel."""
        if not (_is_ready(a, w) and _lies_on(a, None) and _lies_on(w, 0)):
            return FloatProducts(self.geometry).output(a, w, bias, dtype)
        x, y = centre(a, 1), centre(w, 1, of_values=True)
        geometry, kernel, space = self.geometry, y.numbers.shape[2:], x.numbers.shape[2:]
        sums = geometry.output(x.numbers, y.numbers, None)
        around = geometry.output(x.sums, _ones(x, kernel), None)
        inside = geometry.output(_ones(x, space), y.sums, None)
        return combine(sums, x, (y.scale, y.offset), around, inside, bias, dtype)

    def grad_input(
        self, e: Quantized, w: Quantized, a_shape: torch.Size, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Error x weight; the weight may have a scale per output or per input channel."""
        if not (_is_ready(e, w) and _lies_on(e, None) and (_lies_on(w, 0) or _lies_on(w, 1))):
            return FloatProducts(self.geometry).grad_input(e, w, a_shape, dtype)
        one = torch.Size((a_shape[0], 1, *a_shape[2:]))
        single = torch.Size((1, *a_shape[1:]))
        if not _lies_on(w, 1):
            x, (planes, unit) = centre(e, 1, is_doubled=True), fold(w)
            sums = self.geometry.grad_input(x.numbers, planes, a_shape)
            values = unit * planes.sum(0, keepdim=True, dtype=torch.float32)
            ones = _ones(x, x.numbers.shape[2:])
            inside = self.geometry.grad_input(ones, values, single)
            return combine(sums, x, (unit, None), None, inside, None, dtype)
        x, y = centre(e, 1), centre(w, 0, of_values=True)
        sums = self.geometry.grad_input(x.numbers, y.numbers, a_shape)
        around = self.geometry.grad_input(x.sums, _ones(x, y.numbers.shape[2:]), one)
        inside = self.geometry.grad_input(_ones(x, x.numbers.shape[2:]), y.sums, single)
        return combine(sums, x, (y.scale, y.offset), around, inside, None, dtype)

    def grad_weight(
        self, e: Quantized, a: Quantized, w_shape: torch.Size, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Error x input."""
        if not (_is_ready(e, a) and _lies_on(e, None) and _lies_on(a, None)):
            return FloatProducts(self.geometry).grad_weight(e, a, w_shape, dtype)
        x, y = centre(e, 0), centre(a, 0, of_values=True)
        row, column = torch.Size((w_shape[0], 1, *w_shape[2:])), torch.Size((1, *w_shape[1:]))
        sums = self.geometry.grad_weight(x.numbers, y.numbers, w_shape)
        around = self.geometry.grad_weight(x.sums, _ones(x, y.numbers.shape[2:]), row)
        inside = self.geometry.grad_weight(_ones(x, x.numbers.shape[2:]), y.sums, column)
        return combine(sums, x, (y.scale, y.offset), around, inside, None, dtype)


def _is_ready(*operands: Quantized) -> bool:
    """Whether the operands are codes that the device multiplies so."""
    codes = [q.codes for q in operands if q.codes is not None]
    return len(codes) == len(operands) and can_multiply(*codes) and all(c.numel() for c in codes)


def _lies_on(q: Quantized, dim: int | None) -> bool:
    """Whether there is one scale, or one for each index of this dimension."""
    assert q.scale is not None
    n = q.scale.numel()
    return n == 1 or (dim is not None and q.scale.shape[dim] == n)


def _ones(x: Centred, space: torch.Size) -> Tensor:
    """A map of ones."""
    return torch.ones((1, 1, *space), dtype=torch.float32, device=x.numbers.device)


# -- steps: one launch of Triton each, or plain torch ---------------------------------------------


def centre(q: Quantized, dim: int, *, of_values: bool = False, is_doubled: bool = False) -> Centred:
    """The centred codes, and their sums or those of the values over one of two dimensions.

    is_doubled: the channels come twice, and the sums are not needed.
    """
    assert q.codes is not None
    scale, offset = _grid(q)
    kernels = _kernels()
    if kernels is not None:
        made = kernels.centre(_dense(q.codes), scale, offset, dim, of_values, is_doubled)
        if made is not None:
            return Centred(made[0], made[1], scale, offset)
    z, residual = _centre(scale, offset)
    numbers = q.codes - z
    sums = numbers.sum(dim, keepdim=True)
    if of_values:
        sums = scale * sums + residual * numbers.shape[dim]
    centred = numbers.to(torch.bfloat16)
    if is_doubled:
        centred = torch.cat([centred, centred], 1)
    return Centred(centred, sums, scale, offset)


def fold(w: Quantized) -> tuple[Tensor, Tensor]:
    """Planes (2 out, in, *k) of a weight, 256 high before low, and the unit (1, in, ...)."""
    assert w.codes is not None
    scale, offset = _grid(w)
    kernels = _kernels()
    if kernels is not None:
        made: tuple[Tensor, Tensor] | None = kernels.fold(_dense(w.codes), scale, offset)
        if made is not None:
            return made
    values = w.codes * scale + offset
    dims = (0, *range(2, values.dim()))
    unit = values.abs().amax(dims, keepdim=True) / _PEAK
    whole = torch.where(unit > 0, values / unit, 0.0)
    whole = whole.nan_to_num(0.0, 0.0, 0.0).clamp(-_PEAK, _PEAK).round()
    high = ((whole + 128) / 256).floor() * 256
    return torch.cat([high, whole - high]).to(torch.bfloat16), unit


def combine(
    sums: Tensor,
    x: Centred,
    y: tuple[Tensor, Tensor | None],
    around: Tensor | None,
    inside: Tensor,
    bias: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """sx sy sums + sx ry around + rx inside (+ bias), summed in float32; y: scale and offset.

    Scales of y lie along the second dimension of the result.
    """
    scale, offset = (None if each is None else each.reshape(-1) for each in y)
    assert scale is not None
    kernels = _kernels()
    if kernels is not None:
        made: Tensor | None = kernels.combine(
            _dense(sums), x.scale, x.offset, scale, offset, around, inside, bias, dtype
        )
        if made is not None:
            return made.to(dtype=dtype)
    channels = (-1, *[1] * (sums.dim() - 2))
    sx, (_, rx) = x.scale, _centre(x.scale, x.offset)
    result = sums.float() * sx * scale.view(channels) + inside * rx
    if around is not None and offset is not None:
        result += around * (sx * _centre(scale, offset)[1]).view(channels)
    return (result if bias is None else result + bias.float().view(channels)).to(dtype=dtype)


def _centre(scale: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """The code of the value 0, or the nearest end of the grid, and the residual."""
    z = (-offset / scale).clamp(0, 255).round()
    z = torch.where((scale == 0) | z.isnan(), 0.0, z)
    return z, offset + scale * z


def _grid(q: Quantized) -> tuple[Tensor, Tensor]:
    assert q.scale is not None
    assert q.offset is not None
    return q.scale.contiguous(), q.offset.expand(q.scale.shape).contiguous()


def _dense(x: Tensor) -> Tensor:
    """In one of the two layouts that the GPU kernels read."""
    return x.contiguous(memory_format=memory_layout(x))


def _kernels() -> Any:
    """`gpu.maps`; None in a compiled graph, which fuses plain torch."""
    return None if torch.compiler.is_compiling() else importlib.import_module("bitcycle.gpu.maps")
