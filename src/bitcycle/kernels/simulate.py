"""`simulate`: multiplies the values of operands in float, the definition the others are held to.

It works on any device and for any bits, and saves no time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from bitcycle.kernels.base import KERNELS, Kernel, Multiply
from bitcycle.kernels.geometry import ConvGeometry, transposed
from bitcycle.quantizers.base import Quantized


@dataclass(frozen=True)
class FloatKernel(Kernel):
    """Float products of dequantized operands."""

    takes_codes: ClassVar[bool] = False  # values of the grid, in the dtype of the model

    name: str = "simulate"

    def gemm(self, x: Quantized, y: Quantized, bias: Tensor | None = None) -> Tensor:
        """x y^T (+ bias)."""
        first, second = _values(x, y)
        if second.dim() == 2:
            return F.linear(first, second, None if bias is None else bias.to(first.dtype))
        return torch.matmul(first, second.transpose(-1, -2))

    def prepack(self, y: Quantized, bias: Tensor | None = None) -> Multiply:
        """`gemm` with the values of y, multiplied out once."""
        values = Quantized(values=_dequantize(y))
        return lambda x: self.gemm(x, values, bias)

    def conv_output(
        self, geometry: ConvGeometry, a: Quantized, w: Quantized, bias: Tensor | None
    ) -> Tensor:
        """Input x weight (+ bias)."""
        x, y = _values(a, w)
        return geometry.convolve(x, y, None if bias is None else bias.to(x.dtype))

    def conv_grad_input(
        self, geometry: ConvGeometry, e: Quantized, w: Quantized, a_shape: torch.Size
    ) -> Tensor:
        """Error x weight."""
        return geometry.input_gradient(*_values(e, w), a_shape)

    def conv_grad_weight(
        self, geometry: ConvGeometry, e: Quantized, a: Quantized, w_shape: torch.Size
    ) -> Tensor:
        """Error x input."""
        return geometry.weight_gradient(*_values(e, a), w_shape)


def _values(x: Quantized, y: Quantized) -> tuple[Tensor, Tensor]:
    """Both as floats.

    Codes and the values of formats are float32, and so is what half-precision models multiply them
    by.
    """
    first, second = _dequantize(x), _dequantize(y)
    if first.dtype == second.dtype or torch.float64 in (first.dtype, second.dtype):
        return first, second
    wide = torch.promote_types(first.dtype, second.dtype)
    return first.to(wide), second.to(wide)


def _dequantize(q: Quantized) -> Tensor:
    """The values; of transposed codes in memory order, which has the fast pass."""
    if q.codes is not None and q.codes.dim() == 2 and not q.codes.is_contiguous():
        return transposed(q).dequantize().t()
    return q.dequantize()


SIMULATE = KERNELS.register("simulate")(FloatKernel())
