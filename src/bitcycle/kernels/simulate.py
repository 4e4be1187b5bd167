"""`simulate`: multiplies the float32 values of the codes. Exact on any device, saves no time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bitcycle.kernels.base import FLOAT32, KERNELS
from bitcycle.kernels.geometry import Geometry
from bitcycle.quantizers.base import Quantized


@dataclass(frozen=True)
class Simulate:
    """Float products of dequantized operands: the definition the fast kernels are held to."""

    name: str = "simulate"
    rounding: float = FLOAT32
    takes_codes: bool = False  # values of the grid, in the dtype of the model
    second_dtype: torch.dtype = torch.uint8

    def output(self, geometry: Geometry, a: Quantized, w: Quantized, bias: Tensor | None) -> Tensor:
        """act x weight (+ bias)."""
        x, y = _values(a, w)
        return geometry.output(x, y, bias if bias is None else bias.to(x.dtype))

    def grad_input(
        self, geometry: Geometry, e: Quantized, w: Quantized, a_shape: torch.Size
    ) -> Tensor:
        """error x weight."""
        return geometry.grad_input(*_values(e, w), a_shape)

    def grad_weight(
        self, geometry: Geometry, e: Quantized, a: Quantized, w_shape: torch.Size
    ) -> Tensor:
        """error x act."""
        return geometry.grad_weight(*_values(e, a), w_shape)


def _values(x: Quantized, y: Quantized) -> tuple[Tensor, Tensor]:
    """Both as floats: codes are float32, and so is what half-precision models multiply them by."""
    first, second = x.dequantize(), y.dequantize()
    if x.codes is None and y.codes is None:
        return first, second
    wide = torch.promote_types(first.dtype, second.dtype)
    return first.to(wide), second.to(wide)


KERNELS.register("simulate")(Simulate())
