"""`bf16`: multiplies codes in bfloat16, which is exact for each code and rounds each result.

A code is an integer below 256, which bfloat16 holds exactly. Its products are rounded to 8
significant bits on the way out, so the numbers must not carry an offset that the result does not
have: each operand is first moved by its whole number of steps from zero. The rest of the offset,
less than a step, is left to sums of one operand each:

    (sx X + ox)(sw W + ow) summed over K = sx sw (X.W) + sx ow sum(X) + ox (sw sum(W) + K ow)

The result is then within 2^-8 of its norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from bitcycle.kernels.base import BFLOAT16, Multiply, register
from bitcycle.kernels.geometry import ConvGeometry
from bitcycle.kernels.simulate import SIMULATE
from bitcycle.quantizers.base import Quantized


@dataclass(frozen=True)
class Bf16Arithmetic:
    """Whole numbers in bfloat16, where scales allow; float32 values elsewhere.

    The first operand has one scale. The second has one, one per channel of the result, or one per
    element of the summed axis, which goes into the first operand:

        sum_n e_n (s_n W_n + o_n) = sum_n (e_n s_n) W_n + sum_n e_n o_n
    """

    name: str = "bf16"
    takes_codes: bool = True
    rounding: float = BFLOAT16

    def gemm(self, x: Quantized, y: Quantized, bias: Tensor | None = None) -> Tensor:
        """x y^T (+ bias)."""
        if not _can_multiply(x, y):
            return SIMULATE.gemm(x, y, bias)
        assert y.scale is not None
        b = near_zero(y)
        if y.scale.numel() > 1 and y.scale.shape[-1] > 1:
            return _add(_folded(x, b), bias)
        a, length = near_zero(x), b.numbers.shape[-1]
        main = torch.matmul(a.numbers, b.numbers.transpose(-1, -2)).to(torch.float32)
        scale, offset = b.scale.reshape(-1), b.offset.reshape(-1)  # one, or one per column
        columns = b.sum([-1]) * scale + offset * length
        columns = columns if columns.dim() == 1 else columns.unsqueeze(-2)
        result = main * (a.scale * scale) + columns * a.offset
        return _add(result.addcmul_(a.sum([-1], keepdim=True), a.scale * offset), bias)

    def prepack(self, y: Quantized, bias: Tensor | None = None) -> Multiply:
        """`gemm`; y is as small as it gets."""
        return lambda x: self.gemm(x, y, bias)

    def conv_output(
        self, geometry: ConvGeometry, a: Quantized, w: Quantized, bias: Tensor | None
    ) -> Tensor:
        """Input x weight (+ bias); sums of one operand depend on the position at the border."""
        if not _can_convolve(geometry, a, w):
            return SIMULATE.conv_output(geometry, a, w, bias)
        x, y = near_zero(a), near_zero(w)
        channels, spread = y.numbers.shape[0], [1] * geometry.num_dims
        row = (1, -1, *spread)
        main = geometry.convolve(x.numbers, y.numbers).to(torch.float32)
        main = main * (y.scale * x.scale).view(row)
        # x's offset meets every weight that lies on the image
        weight_sums = y.sum([1], keepdim=True) * y.scale + y.offset * y.numbers.shape[1]
        ones = weight_sums.new_ones(1, geometry.groups, *x.numbers.shape[2:])
        constant = geometry.convolve(ones, weight_sums) * x.offset  # (1, Cout, *out)
        if bias is not None:
            constant = constant + bias.to(torch.float32).view(row)
        # the weight's offset meets the sum of all codes under the kernel
        boxes = geometry.convolve(_sum_channels(x, geometry.groups), _box(y, geometry))
        boxes = _to_channels(boxes, channels)
        return main.addcmul_(boxes, (y.offset * x.scale).view(row)).add_(constant)

    def conv_grad_input(
        self, geometry: ConvGeometry, e: Quantized, w: Quantized, a_shape: torch.Size
    ) -> Tensor:
        """Error x weight; scales per output channel go into the error."""
        if not _can_convolve(geometry, e, w):
            return SIMULATE.conv_grad_input(geometry, e, w, a_shape)
        error, y, groups = e.dequantize(), near_zero(w), geometry.groups
        row = (1, -1, *[1] * geometry.num_dims)
        scaled = (error * y.scale.view(row)).to(torch.bfloat16)
        main = geometry.input_gradient(scaled, y.numbers, a_shape)
        batch, channels, *space = error.shape
        grouped = (error * y.offset.view(row)).reshape(batch, groups, channels // groups, *space)
        rest = grouped.sum(2)  # (N, G, *out)
        small = torch.Size((a_shape[0], groups, *a_shape[2:]))
        rest = geometry.input_gradient(rest, _box(y, geometry), small)
        return main.to(torch.float32) + _to_channels(rest, a_shape[1])

    def conv_grad_weight(
        self, geometry: ConvGeometry, e: Quantized, a: Quantized, w_shape: torch.Size
    ) -> Tensor:
        """Error x input."""
        if not _can_convolve(geometry, e, a):
            return SIMULATE.conv_grad_weight(geometry, e, a, w_shape)
        x, y = near_zero(e), near_zero(a)
        grad = geometry.weight_gradient(x.numbers, y.numbers, w_shape).to(torch.float32)
        grad = grad * (x.scale * y.scale)
        groups, spread = geometry.groups, w_shape[2:]
        # the input's offset meets the errors at the positions where the tap lies on the image
        ones = grad.new_ones(1, groups, *y.numbers.shape[2:])
        errors = x.sum([0], keepdim=True) * x.scale + x.offset * x.numbers.shape[0]
        each = torch.Size((w_shape[0], 1, *spread))
        grad += geometry.weight_gradient(errors, ones, each) * y.offset
        # the error's offset meets all the codes a tap sees
        codes = y.sum([0], keepdim=True) * y.scale
        flat = grad.new_ones(1, groups, *x.numbers.shape[2:])
        one = torch.Size((groups, w_shape[1], *spread))
        reached = geometry.weight_gradient(flat, codes, one) * x.offset  # (G, Cin / G, *k)
        return grad.add_(reached.repeat_interleave(w_shape[0] // groups, dim=0))


register(Bf16Arithmetic())


@dataclass(frozen=True)
class WholeNumbers:
    """value = scale * number + offset; bfloat16 numbers."""

    numbers: Tensor
    scale: Tensor
    offset: Tensor

    def sum(self, dims: list[int], keepdim: bool = False) -> Tensor:
        """The numbers summed in float32."""
        return self.numbers.sum(dims, keepdim=keepdim, dtype=torch.float32)


def near_zero(q: Quantized) -> WholeNumbers:
    """Codes + d in bfloat16, where offset = d steps + a rest of less than one."""
    assert q.codes is not None
    assert q.scale is not None
    assert q.offset is not None
    steps = torch.round(q.offset / q.scale).clamp(-256, 0)
    steps = torch.where(q.scale == 0, 0.0, steps)
    numbers = (q.codes + steps).to(torch.bfloat16)
    return WholeNumbers(numbers, q.scale, q.offset - steps * q.scale)


def _folded(x: Quantized, b: WholeNumbers) -> Tensor:
    """The scales of `b` along the summed axis, (1, K), multiplied into the values of x."""
    values = x.dequantize()
    scaled = (values * b.scale.reshape(-1)).to(torch.bfloat16)
    main = torch.matmul(scaled, b.numbers.transpose(-1, -2)).to(torch.float32)
    return main + (values @ b.offset.reshape(-1)).unsqueeze(-1)


def _add(result: Tensor, bias: Tensor | None) -> Tensor:
    return result if bias is None else result + bias


def _is_one(scale: Tensor | None) -> bool:
    return scale is not None and scale.numel() == 1


def _can_multiply(x: Quantized, y: Quantized) -> bool:
    """Whether both are codes, the first with one scale, the second with scales on one axis."""
    if x.codes is None or y.codes is None or not _is_one(x.scale):
        return False
    if x.codes.numel() == 0 or y.codes.numel() == 0:  # an empty batch multiplies nothing
        return False
    assert y.scale is not None
    return sum(n > 1 for n in y.scale.shape) <= 1 and (y.codes.dim() == 2 or _is_one(y.scale))


def _can_convolve(geometry: ConvGeometry, x: Quantized, y: Quantized) -> bool:
    """Likewise; the second has one scale, or one for each element of its first dimension."""
    if geometry.transposed or x.codes is None or y.codes is None or not _is_one(x.scale):
        return False
    if x.codes.numel() == 0 or y.codes.numel() == 0:
        return False
    assert y.scale is not None
    return y.scale.numel() in (1, prod(y.scale.shape[:1]))


def _sum_channels(x: WholeNumbers, groups: int) -> Tensor:
    """(N, C, *space) -> (N, G, *space): the numbers of each group's channels summed."""
    batch, channels, *space = x.numbers.shape
    grouped = x.numbers.reshape(batch, groups, channels // groups, *space)
    return grouped.sum(2, dtype=torch.float32)


def _box(w: WholeNumbers, geometry: ConvGeometry) -> Tensor:
    return w.scale.new_ones(geometry.groups, 1, *w.numbers.shape[2:])


def _to_channels(maps: Tensor, channels: int) -> Tensor:
    """(N, G, *space) -> what broadcasts against (N, channels, *space)."""
    groups = maps.shape[1]
    return maps if groups == 1 else maps.repeat_interleave(channels // groups, dim=1)
