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

    name: str

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


def choose_kernel(name: str) -> tuple[str, str]:
    """The kernel a layer gets for a requested name, and why.

    >>> choose_kernel("simulate")
    ('simulate', 'asked for')
    """
    if name == "auto":
        return "simulate", "auto: the only kernel there is"
    KERNELS[name]  # an unknown name is an error here, before anything is converted
    return name, "asked for"
