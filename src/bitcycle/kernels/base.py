"""The kernel boundary: two `Quantized` and a geometry in, one of the three products out."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from bitcycle.kernels.geometry import Geometry
from bitcycle.quantizers.base import Quantized
from bitcycle.registry import Registry


class Kernel(Protocol):
    """Multiplies quantized operands. Stateless; `simulate` is the oracle of the others."""

    @property
    def name(self) -> str:
        """What `make_kernel` makes it from."""

    @property
    def rounding(self) -> float:
        """How far a result may be from exact, relative to the sum of absolute products."""

    @property
    def takes_codes(self) -> bool:
        """Whether operands of at most 8 bits should come as codes."""

    @property
    def second_dtype(self) -> torch.dtype:
        """Return the dtype of the second operand's codes; the others' codes are uint8."""

    def output(self, geometry: Geometry, a: Quantized, w: Quantized, bias: Tensor | None) -> Tensor:
        """act x weight (+ float bias)."""

    def grad_input(
        self, geometry: Geometry, e: Quantized, w: Quantized, a_shape: torch.Size
    ) -> Tensor:
        """error x weight."""

    def grad_weight(
        self, geometry: Geometry, e: Quantized, a: Quantized, w_shape: torch.Size
    ) -> Tensor:
        """error x act."""


KERNELS: Registry[Kernel] = Registry("kernel", "bitcycle.kernels")
FLOAT32, BFLOAT16 = 2.0**-18, 2.0**-7  # of sums of up to thousands of products; of one result
MATMULS = ("output", "grad_input", "grad_weight")
