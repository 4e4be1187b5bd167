"""Kernels: what multiplies quantized tensors.

A layer has three products: output, grad_input and grad_weight. A geometry (linear, convolution,
...) writes each of them as a matrix product or a convolution of two `Quantized`; a kernel computes
that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from bitcycle.quantizers.base import Quantized
from bitcycle.registry import Registry, unknown_name

if TYPE_CHECKING:
    from bitcycle.kernels.geometry import ConvGeometry

MATMULS = ("output", "grad_input", "grad_weight")
AUTO = "auto"

Multiply = Callable[[Quantized], Tensor]


@dataclass(frozen=True)
class Kernel(ABC):
    """Multiplies two quantized operands; the result is float. Stateless."""

    takes_codes: ClassVar[bool]  # operands of at most 8 bits should come as codes

    name: str

    @property
    def is_undecided(self) -> bool:
        """Whether this stands for a kernel that is chosen when shapes are known."""
        return self.name == AUTO

    @abstractmethod
    def gemm(self, x: Quantized, y: Quantized, bias: Tensor | None = None) -> Tensor:
        """x (..., K), y (N, K) -> (..., N); or (..., M, K), (..., N, K) -> (..., M, N)."""

    @abstractmethod
    def prepack(self, y: Quantized, bias: Tensor | None = None) -> Multiply:
        """x -> `gemm(x, y, bias)`, for many x (rows, K) with the same y (N, K)."""

    @abstractmethod
    def conv_output(
        self, geometry: ConvGeometry, a: Quantized, w: Quantized, bias: Tensor | None
    ) -> Tensor:
        """Input x weight (+ bias) of a convolution."""

    @abstractmethod
    def conv_grad_input(
        self, geometry: ConvGeometry, e: Quantized, w: Quantized, a_shape: torch.Size
    ) -> Tensor:
        """Error x weight of a convolution."""

    @abstractmethod
    def conv_grad_weight(
        self, geometry: ConvGeometry, e: Quantized, a: Quantized, w_shape: torch.Size
    ) -> Tensor:
        """Error x input of a convolution."""


KERNELS: Registry[Kernel] = Registry("kernel", "bitcycle.kernels")


def make_kernel(name: str) -> Kernel:
    """A kernel of the registry, or "auto", which multiplies as "simulate" until it is decided.

    >>> make_kernel("native").takes_codes, make_kernel("auto").takes_codes
    (True, False)
    """
    if name == AUTO:
        return replace(KERNELS["simulate"], name=AUTO)
    try:
        return KERNELS[name]
    except ValueError:
        raise unknown_name("kernel", name, [AUTO, *KERNELS]) from None
