"""Kernels: what multiplies quantized tensors.

A layer has three products: output, grad_input and grad_weight. A geometry (linear, convolution,
...) defines them on float tensors. A kernel has a function of quantized operands for each, which
the plan of a layer holds. To add a kernel, add one file: what it can multiply, and how; the rest
falls back to `simulate`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Protocol

import torch
from torch import Tensor

from bitcycle.bits import Bits
from bitcycle.quantizers.base import GridRule, Quantized
from bitcycle.registry import Registry, unknown_name

if TYPE_CHECKING:
    from bitcycle.kernels.geometry import Geometry
    from bitcycle.native.layer import LayerProduct

MATMULS = ("output", "grad_input", "grad_weight")
AUTO = "auto"

# `Kernel.error_bound`: of sums in float32 in any order, and with one rounding to bfloat16
FLOAT32_ERROR = 2.0**-18
BF16_ERROR = 2.0**-8 + FLOAT32_ERROR

Multiply = Callable[[Quantized], Tensor]


class Products(Protocol):
    """The three products of a geometry.

    dtype: of the result; None: as it is computed.
    """

    def output(
        self, a: Quantized, w: Quantized, bias: Tensor | None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """a x w (+ bias)."""

    def grad_input(
        self, e: Quantized, w: Quantized, a_shape: torch.Size, dtype: torch.dtype | None = None
    ) -> Tensor:
        """e x w: the error at the input."""

    def grad_weight(
        self, e: Quantized, a: Quantized, w_shape: torch.Size, dtype: torch.dtype | None = None
    ) -> Tensor:
        """e x a: the gradient of the second operand."""


@dataclass(frozen=True)
class Kernel(ABC):
    """Multiplies quantized operands. Stateless."""

    takes_codes: ClassVar[bool]  # operands of at most 8 bits should come as codes
    takes_scaled: ClassVar[bool] = False  # formats should come as matrices for tensor cores

    name: str
    takes_bf16: bool = False  # operands at the level bf16 should come as bfloat16

    @property
    def is_undecided(self) -> bool:
        """Whether this stands for a kernel that is chosen when shapes are known."""
        return self.name == AUTO

    @abstractmethod
    def products(self, geometry: Geometry) -> Products:
        """The functions that multiply operands of this geometry."""

    @abstractmethod
    def prepack(self, y: Quantized, bias: Tensor | None = None) -> Multiply:
        """x -> x y^T (+ bias), for many x (rows, K) with the same y (N, K)."""

    def reason_against(self, geometry: Geometry) -> str | None:
        """What of this geometry the kernel leaves to float32; None if it multiplies all of it."""
        return None

    def notes_on(self, geometry: Geometry) -> list[str]:
        """What of this geometry is no product of codes as integers, if the kernel takes codes."""
        why = self.reason_against(geometry)
        return [] if why is None else [f"multiplies in float32: {why}"]

    def reason_against_device(self, device_type: str) -> str | None:
        """Why everything is a float32 product on this type of device; None if it is not."""
        return None

    def error_bound(self, geometry: Geometry, bits: Bits | None = None) -> float:
        """How far an element of a product may be from the exact one of the same operands.

        It is a share of the sum of the magnitudes of the element's terms, where an operand on a
        grid counts with its magnitude plus the length of the grid. bits: of both operands, where
        they are a format.
        """
        is_bf16 = bits is not None and bits.is_bf16 and self.takes_bf16
        return BF16_ERROR if is_bf16 else FLOAT32_ERROR

    def layer_product(
        self,
        geometry: Geometry,
        rule: GridRule,
        *,
        packs: tuple[bool, bool],
        has_rows: bool = False,
    ) -> LayerProduct | None:
        """The product with the rounding of its operands in one call per direction, if there is one.

        packs: whether the first and the second operand are kept two codes per byte. has_rows: the
        first has a range for each row.
        """
        return None


KERNELS: Registry[Kernel] = Registry("kernel", "bitcycle.kernels")


def make_kernel(name: str) -> Kernel:
    """A kernel of the registry, or "auto", which stands for one until it is decided.

    >>> make_kernel("native").takes_codes, make_kernel("auto").takes_codes
    (True, False)
    """
    if name == AUTO:
        return replace(KERNELS["simulate"], name=AUTO)
    try:
        return KERNELS[name]
    except ValueError:
        raise unknown_name("kernel", name, [AUTO, *KERNELS]) from None
