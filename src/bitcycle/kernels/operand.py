"""An operand of a product of whole numbers, and the sums that its offset costs.

    (sx X + ox)(sw W + ow) summed over K = sx sw (X.W) + sx ow sum(X) + ox (sw sum(W) + K ow)

One product of whole numbers, and three terms that need only sums of one operand each.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from bitcycle.kernels.geometry import ConvGeometry
from bitcycle.ops.layout import has_outer_rows, rows
from bitcycle.quantizers.base import Quantized


@dataclass(frozen=True)
class Operand:
    """value = scale * number + offset; `top` bounds the bits of the numbers."""

    numbers: Tensor  # whole: uint8, int8 or bfloat16
    scale: Tensor
    offset: Tensor
    top: int

    def sum(self, dims: list[int], keepdim: bool = False) -> Tensor:
        """The numbers summed, as float32; exactly if they are integers."""
        wide = torch.float32
        if not self.numbers.is_floating_point():  # int32 holds 2^23 bytes of any sign
            wide = torch.int32 if self._count(dims) <= 1 << 23 else torch.int64
        if dims == [0] and not torch.compiler.is_compiling() and has_outer_rows(self.numbers):
            return _sum_batch(self.numbers, wide, keepdim)
        return self.numbers.sum(dims, keepdim=keepdim, dtype=wide).to(torch.float32)

    def value_sum(self, dims: list[int], keepdim: bool = False) -> Tensor:
        """The values summed: scale * sum + count * offset, which must broadcast to the result."""
        return self.sum(dims, keepdim) * self.scale + self.offset * self._count(dims)

    def _count(self, dims: list[int]) -> int:
        return prod([self.numbers.shape[d] for d in dims])


def _sum_batch(x: Tensor, dtype: torch.dtype, keepdim: bool) -> Tensor:
    """`x.sum(0)` in memory order, which for channels-last maps takes a tenth of the time."""
    total = rows(x).sum(0, dtype=dtype).to(torch.float32)
    total = total.as_strided(x.shape[1:], x.stride()[1:])
    return total.unsqueeze(0) if keepdim else total


class Arithmetic(Protocol):
    """Whole-number products: integers (`int8`) or bfloat16 (`bf16`)."""

    def first(self, q: Quantized) -> Operand:
        """Codes as the first operand of `gemm` and `conv`."""

    def second(self, q: Quantized) -> Operand:
        """Codes as the second one."""

    def gemm(self, x: Operand, w: Operand, scale: Tensor, bias: Tensor | None) -> Tensor:
        """scale[n] * sum_k X[m, k] W[n, k] + bias[n], in float32."""

    def conv(self, x: Operand, w: Operand, geometry: ConvGeometry, scale: Tensor) -> Tensor:
        """scale[n] * the convolution of X with W, in float32."""

    def conv_weight(
        self, e: Operand, a: Operand, geometry: ConvGeometry, w_shape: torch.Size
    ) -> Tensor:
        """The weight gradient of a convolution with error E and input A, in float32."""


def per_channel(x: Tensor, channels: int) -> Tensor:
    """A scalar, or a tensor with one element per channel, as (channels,)."""
    return x.reshape(1).expand(channels) if x.numel() == 1 else x.reshape(channels)
