"""`simulate`: multiplies the float32 values of the codes. Exact on any device, saves no time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bitcycle.kernels.base import KERNELS
from bitcycle.kernels.geometry import Geometry
from bitcycle.quantizers.base import Quantized


@dataclass(frozen=True)
class Simulate:
    """Float products of dequantized operands: the definition the fast kernels are held to."""

    name: str = "simulate"

    def output(self, geometry: Geometry, a: Quantized, w: Quantized, bias: Tensor | None) -> Tensor:
        """act x weight (+ bias)."""
        return geometry.output(a.dequantize(), w.dequantize(), bias)

    def grad_input(
        self, geometry: Geometry, e: Quantized, w: Quantized, a_shape: torch.Size
    ) -> Tensor:
        """error x weight."""
        return geometry.grad_input(e.dequantize(), w.dequantize(), a_shape)

    def grad_weight(
        self, geometry: Geometry, e: Quantized, a: Quantized, w_shape: torch.Size
    ) -> Tensor:
        """error x act."""
        return geometry.grad_weight(e.dequantize(), a.dequantize(), w_shape)


KERNELS.register("simulate")(Simulate())
