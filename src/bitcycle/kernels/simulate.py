"""`simulate`: multiplies the values of operands in float, the definition the others are held to.

It works on any device and for any bits, and saves no time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bitcycle.kernels.base import KERNELS, Kernel, Multiply, Products
from bitcycle.kernels.geometry import Geometry, multiply_rows
from bitcycle.quantizers.base import Quantized


@dataclass(frozen=True)
class FloatKernel(Kernel):
    """Products of dequantized operands, in float32 or in the dtype that both have."""

    takes_codes: ClassVar[bool] = False  # values of the grid, in the dtype of the model

    name: str = "simulate"

    def products(self, geometry: Geometry) -> Products:
        """The geometry's own, of values."""
        return FloatProducts(geometry)

    def prepack(self, y: Quantized, bias: Tensor | None = None) -> Multiply:
        """With the values of y, multiplied out once."""
        values = Quantized(values=y.dequantize())

        def multiply(x: Quantized) -> Tensor:
            first, second = as_floats(x, values)
            return multiply_rows(first, second, bias)

        return multiply


@dataclass(frozen=True)
class FloatProducts:
    """The products of a geometry on the values of quantized operands."""

    geometry: Geometry

    def output(
        self, a: Quantized, w: Quantized, bias: Tensor | None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """a x w (+ bias)."""
        return self.geometry.output(*as_floats(a, w), bias).to(dtype=dtype)

    def grad_input(
        self, e: Quantized, w: Quantized, a_shape: torch.Size, dtype: torch.dtype | None = None
    ) -> Tensor:
        """e x w."""
        return self.geometry.grad_input(*as_floats(e, w), a_shape).to(dtype=dtype)

    def grad_weight(
        self, e: Quantized, a: Quantized, w_shape: torch.Size, dtype: torch.dtype | None = None
    ) -> Tensor:
        """e x a."""
        return self.geometry.grad_weight(*as_floats(e, a), w_shape).to(dtype=dtype)


def as_floats(x: Quantized, y: Quantized) -> tuple[Tensor, Tensor]:
    """The values of both.

    Codes and the values of formats are float32, and so is what half-precision models multiply them
    by.
    """
    first = x.dequantize() if x.values is None else x.values
    second = y.dequantize() if y.values is None else y.values
    if first.dtype == second.dtype or torch.float64 in (first.dtype, second.dtype):
        return first, second
    wide = torch.promote_types(first.dtype, second.dtype)
    return first.to(wide), second.to(wide)


SIMULATE = KERNELS.register("simulate")(FloatKernel())
