"""`bf16`: multiplies codes in bfloat16, which is exact for each code and rounds each result.

A code is a whole number below 256, which bfloat16 holds exactly. Its products are rounded to 8
significant bits on the way out, so the numbers must not carry an offset that the result does not
have: each operand is first moved by its whole number of steps from zero, and only the rest of the
offset, less than a step, is left to the sums. The result is then within 2^-8 of its norm.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bitcycle.kernels.base import BFLOAT16, KERNELS
from bitcycle.kernels.coded import Coded, lies_on
from bitcycle.kernels.geometry import ConvGeometry, Geometry, LinearGeometry
from bitcycle.kernels.operand import Operand
from bitcycle.quantizers.base import Quantized


class RoundedArithmetic:
    """Whole numbers in bfloat16."""

    def first(self, q: Quantized) -> Operand:
        """Moved so that 0 is close to the value 0."""
        return near_zero(q)

    def second(self, q: Quantized) -> Operand:
        """Moved so that 0 is close to the value 0."""
        return near_zero(q)

    def gemm(self, x: Operand, w: Operand, scale: Tensor, bias: Tensor | None) -> Tensor:
        """scale[n] * sum_k X[m, k] W[n, k] + bias[n]."""
        result = (x.numbers @ w.numbers.t()).to(torch.float32)
        return result * scale if bias is None else torch.addcmul(bias, result, scale)

    def conv(self, x: Operand, w: Operand, geometry: ConvGeometry, scale: Tensor) -> Tensor:
        """scale[n] * the convolution of X with W."""
        result = geometry.output(x.numbers, w.numbers, None).to(torch.float32)
        return result * scale.view(1, -1, *[1] * geometry.num_dims)

    def conv_weight(
        self, e: Operand, a: Operand, geometry: ConvGeometry, w_shape: torch.Size
    ) -> Tensor:
        """The weight gradient of a convolution with error E and input A."""
        return geometry.grad_weight(e.numbers, a.numbers, w_shape).to(torch.float32)


def near_zero(q: Quantized) -> Operand:
    """Codes + d in bfloat16, where offset = d steps + a rest of less than one."""
    assert q.codes is not None
    assert q.scale is not None
    assert q.offset is not None
    lowest, highest = (-256, 0) if q.codes.dtype == torch.uint8 else (-128, 128)
    steps = torch.round(q.offset / q.scale).clamp(lowest, highest)
    steps = torch.where(q.scale == 0, 0.0, steps)
    numbers = (q.codes + steps).to(torch.bfloat16)
    return Operand(numbers, q.scale, q.offset - steps * q.scale, q.top)


class Bf16(Coded):
    """All three products in bfloat16; grad_input folds the weight's scales into the error."""

    name = "bf16"
    rounding = BFLOAT16
    arithmetic = RoundedArithmetic()

    def grad_input(
        self, geometry: Geometry, e: Quantized, w: Quantized, a_shape: torch.Size
    ) -> Tensor:
        """error x weight. Scales per output channel lie on the summed axis: they go to the error.

        sum_n e_n (s_n W_n + o_n) = sum_n (e_n s_n) W_n + sum_n e_n o_n
        """
        if not (self.takes(geometry, e, w) and lies_on(w.scale, 0)):
            return super().grad_input(geometry, e, w, a_shape)
        y, error = near_zero(w), e.dequantize()
        if isinstance(geometry, LinearGeometry):
            scale, offset = y.scale.reshape(-1), y.offset.reshape(-1)
            main = geometry.grad_input((error * scale).to(torch.bfloat16), y.numbers, a_shape)
            rest = error @ offset.expand(error.shape[-1])
            return main.to(torch.float32) + rest.unsqueeze(-1)
        if isinstance(geometry, ConvGeometry):
            return _conv_grad_input(geometry, error, y, a_shape)
        return super().grad_input(geometry, e, w, a_shape)


def _conv_grad_input(
    geometry: ConvGeometry, error: Tensor, y: Operand, a_shape: torch.Size
) -> Tensor:
    groups, spread = geometry.groups, [1] * geometry.num_dims
    scale, offset = (v.reshape(1, -1, *spread) for v in (y.scale, y.offset))
    main = geometry.grad_input((error * scale).to(torch.bfloat16), y.numbers, a_shape)
    batch, channels, *space = error.shape
    grouped = (error * offset).reshape(batch, groups, channels // groups, *space)
    rest = grouped.sum(2)  # (N, G, *out)
    box = rest.new_ones(groups, 1, *y.numbers.shape[2:])
    rest = geometry.grad_input(rest, box, torch.Size((a_shape[0], groups, *a_shape[2:])))
    if groups > 1:
        rest = rest.repeat_interleave(a_shape[1] // groups, dim=1)
    return main.to(torch.float32) + rest


KERNELS.register("bf16")(Bf16())
