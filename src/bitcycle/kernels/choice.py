"""Choose the kernel of a layer (provisional)."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from bitcycle.kernels.base import Kernel, make_kernel
from bitcycle.kernels.geometry import Geometry
from bitcycle.kernels.native import HAS_LIBRARY, reason_against

MAX_CODE_BITS = 8


@dataclass(frozen=True)
class Recurrence:
    """The other product of a recurrent layer: one weight, a few rows at each time step."""

    rows: int
    num_steps: int
    w_shape: tuple[int, int]


@functools.cache
def has_bf16(device_type: str) -> bool:
    """Whether bfloat16 products are faster than float32 ones there."""
    return False


def requested_kernel(name: str, *, weight_grids: int, device_type: str) -> tuple[Kernel, str]:
    """The kernel for a requested name, and why; "auto" is decided when shapes are known."""
    kernel = make_kernel(name)
    if kernel.is_undecided:
        return kernel, "auto: decided at the first training step with bits"
    return kernel, "asked for"


def decide_kernel(
    geometry: Geometry,
    a: torch.Tensor,
    w: torch.Tensor,
    *,
    tops: tuple[int | None, int | None, int | None],
    weight_grids: int,
    recurrence: Recurrence | None = None,
) -> tuple[Kernel, str]:
    """What "auto" means for a product of these shapes; tops: bits of act, second operand, error."""
    simulate = make_kernel("simulate")
    if a.dtype == torch.float64 or w.dtype == torch.float64:
        return simulate, "auto: float64"
    if tops[0] is None or tops[1] is None:
        return simulate, "auto: an operand is float32"
    if max(tops[0], tops[1]) > MAX_CODE_BITS or not HAS_LIBRARY or reason_against(geometry):
        return simulate, "auto"
    if geometry.macs(a.shape, w.shape) < 1 << 18:
        return simulate, "auto: too small to gain"
    return make_kernel("native"), "auto: native"
