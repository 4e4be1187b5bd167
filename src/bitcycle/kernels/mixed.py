"""A kernel of three: one for each product, written output/grad_input/grad_weight."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bitcycle.kernels.base import KERNELS, MATMULS, Kernel
from bitcycle.kernels.geometry import Geometry
from bitcycle.kernels.simulate import Simulate
from bitcycle.quantizers.base import Quantized


@dataclass(frozen=True)
class Mixed:
    """Each product by a kernel of its own; all of them take codes."""

    parts: tuple[Kernel, Kernel, Kernel]  # in the order of MATMULS
    takes_codes: bool = True

    @property
    def name(self) -> str:
        """Return the names of the parts, such as int8/bf16/int8."""
        return "/".join(part.name for part in self.parts)

    @property
    def second_dtype(self) -> torch.dtype:
        """int8 if any part multiplies integers."""
        kinds = {part.second_dtype for part in self.parts}
        return torch.int8 if torch.int8 in kinds else torch.uint8

    @property
    def rounding(self) -> float:
        """Return the rounding of the coarsest part."""
        return max(part.rounding for part in self.parts)

    def output(self, geometry: Geometry, a: Quantized, w: Quantized, bias: Tensor | None) -> Tensor:
        """act x weight (+ bias)."""
        return self.parts[0].output(geometry, a, w, bias)

    def grad_input(
        self, geometry: Geometry, e: Quantized, w: Quantized, a_shape: torch.Size
    ) -> Tensor:
        """error x weight."""
        return self.parts[1].grad_input(geometry, e, w, a_shape)

    def grad_weight(
        self, geometry: Geometry, e: Quantized, a: Quantized, w_shape: torch.Size
    ) -> Tensor:
        """error x act."""
        return self.parts[2].grad_weight(geometry, e, a, w_shape)


# What a layer has until its kernel is decided: multiplies like `simulate`.
UNDECIDED = Simulate(name="auto")


def make_kernel(name: str) -> Kernel:
    """A kernel from its name: one of the registry, three of them (x/y/z), or "auto".

    >>> make_kernel("int8/bf16/int8").name
    'int8/bf16/int8'
    """
    if name == "auto":
        return UNDECIDED
    if "/" not in name:
        return KERNELS[name]
    parts = [KERNELS[part] for part in name.split("/")]
    if len(parts) != len(MATMULS) or not all(part.takes_codes for part in parts):
        choices = [kernel for kernel in KERNELS if KERNELS[kernel].takes_codes]
        raise ValueError(
            f"kernel {name!r} must name one kernel, or three that take codes, for "
            f"{', '.join(MATMULS)} in this order; there are {', '.join(choices)}"
        )
    output, grad_input, grad_weight = parts
    if output is grad_input is grad_weight:
        return output
    return Mixed((output, grad_input, grad_weight))
