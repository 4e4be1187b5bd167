"""Kernels: what multiplies quantized tensors.

A layer has three products: output, grad_input and grad_weight. A geometry (linear, convolution,
...) writes each of them as a matrix product or a convolution of two `Quantized`; an arithmetic
computes that. A kernel has one arithmetic for each of the three, named "native" if they are the
same and "native/bf16/native" if they differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from bitcycle.quantizers.base import Quantized
from bitcycle.registry import Registry

if TYPE_CHECKING:
    from bitcycle.kernels.geometry import ConvGeometry, Geometry

# `Arithmetic.rounding` of float32 sums, of operands rounded to 16 bits, and of bfloat16 results.
FLOAT32, FOLDED, BFLOAT16 = 2.0**-18, 2.0**-16, 2.0**-7
MATMULS = ("output", "grad_input", "grad_weight")
AUTO = "auto"
_EARLIER_NAMES = {"int8": "native"}

Multiply = Callable[[Quantized], Tensor]


class Arithmetic(Protocol):
    """Multiplies two quantized operands; the result is float. Stateless."""

    @property
    def name(self) -> str:
        """The name of the kernel that has it for all three products."""

    @property
    def rounding(self) -> float:
        """How far a result may be from exact, relative to the sum of absolute products."""

    @property
    def takes_codes(self) -> bool:
        """Whether operands of at most 8 bits should come as codes."""

    def gemm(self, x: Quantized, y: Quantized, bias: Tensor | None = None) -> Tensor:
        """x (..., K), y (N, K) -> (..., N); or (..., M, K), (..., N, K) -> (..., M, N)."""

    def prepack(self, y: Quantized, bias: Tensor | None = None) -> Multiply:
        """x -> `gemm(x, y, bias)`, for many x (rows, K) with the same y (N, K)."""

    def conv_output(
        self, geometry: ConvGeometry, a: Quantized, w: Quantized, bias: Tensor | None
    ) -> Tensor:
        """Input x weight (+ bias) of a convolution."""

    def conv_grad_input(
        self, geometry: ConvGeometry, e: Quantized, w: Quantized, a_shape: torch.Size
    ) -> Tensor:
        """Error x weight of a convolution."""

    def conv_grad_weight(
        self, geometry: ConvGeometry, e: Quantized, a: Quantized, w_shape: torch.Size
    ) -> Tensor:
        """Error x input of a convolution."""


@dataclass(frozen=True)
class Kernel:
    """An arithmetic for each of the three products, in the order of `MATMULS`."""

    name: str
    parts: tuple[Arithmetic, Arithmetic, Arithmetic]

    @property
    def is_undecided(self) -> bool:
        """Whether this stands for a kernel that is chosen when shapes are known."""
        return self.name == AUTO

    @property
    def rounding(self) -> float:
        """The rounding of the coarsest arithmetic."""
        return max(part.rounding for part in self.parts)

    @property
    def takes_codes(self) -> bool:
        """Whether operands of at most 8 bits should come as codes."""
        return self.parts[0].takes_codes

    def output(self, geometry: Geometry, a: Quantized, w: Quantized, bias: Tensor | None) -> Tensor:
        """act x weight (+ float bias)."""
        return geometry.output(self.parts[0], a, w, bias)

    def grad_input(
        self, geometry: Geometry, e: Quantized, w: Quantized, a_shape: torch.Size
    ) -> Tensor:
        """error x weight."""
        return geometry.grad_input(self.parts[1], e, w, a_shape)

    def grad_weight(
        self, geometry: Geometry, e: Quantized, a: Quantized, w_shape: torch.Size
    ) -> Tensor:
        """error x act."""
        return geometry.grad_weight(self.parts[2], e, a, w_shape)


KERNELS: Registry[Kernel] = Registry("kernel", "bitcycle.kernels")


def register(arithmetic: Arithmetic) -> None:
    """Add the kernel that has this arithmetic for all three products."""
    kernel = Kernel(arithmetic.name, (arithmetic, arithmetic, arithmetic))
    KERNELS.register(arithmetic.name)(kernel)


def make_kernel(name: str) -> Kernel:
    """A kernel from its name: one of the registry, three of them (x/y/z), or "auto".

    "int8" is the earlier name of "native". "auto" multiplies as "simulate" until it is decided.

    >>> make_kernel("native/bf16/native").name
    'native/bf16/native'
    """
    if name == AUTO:
        return Kernel(AUTO, KERNELS["simulate"].parts)
    if not isinstance(name, str) or "/" not in name:
        return KERNELS[_EARLIER_NAMES.get(name, name)]
    kernels = [make_kernel(part) for part in name.split("/")]
    if len(kernels) != len(MATMULS) or not all(kernel.takes_codes for kernel in kernels):
        choices = [kernel for kernel in KERNELS if KERNELS[kernel].takes_codes]
        raise ValueError(
            f"kernel {name!r} must name one kernel, or three that take codes, for "
            f"{', '.join(MATMULS)} in this order; there are {', '.join(choices)}"
        )
    output, grad_input, grad_weight = (kernel.parts[0] for kernel in kernels)
    if output is grad_input is grad_weight:
        return kernels[0]
    names = "/".join(kernel.name for kernel in kernels)
    return Kernel(names, (output, grad_input, grad_weight))
