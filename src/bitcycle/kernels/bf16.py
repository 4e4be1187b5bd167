"""`bf16`: multiplies bfloat16 operands with torch's bfloat16 products; others as `simulate` does.

    result = bf16(sum of products + bias)        sums in float32, one rounding of each result

A result differs from `simulate`'s by at most 2^-8 of the results' norm. Both operands of a product
must be at the level bf16. A kernel that takes bfloat16 keeps such operands in 16 bits.

"auto" takes it where the processor has BF16 instructions. Elsewhere torch computes the same
products more slowly. BITCYCLE_BF16=0 in the environment does without the instructions.
"""

from __future__ import annotations

import functools
import os

import torch
from torch import Tensor

from bitcycle.kernels.base import KERNELS
from bitcycle.kernels.geometry import ConvGeometry, Geometry
from bitcycle.kernels.simulate import FloatKernel

SWITCH = "BITCYCLE_BF16"

KERNELS.register("bf16")(FloatKernel("bf16", takes_bf16=True))


@functools.cache
def has_instructions() -> bool:
    """Whether the processor multiplies bfloat16, and BITCYCLE_BF16 does not say 0."""
    choice = os.environ.get(SWITCH, "")
    if choice not in ("", "0"):
        raise ValueError(f"{SWITCH}={choice}: use 0 to do without BF16 instructions, or no value")
    if choice == "0" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    query = getattr(torch.cpu, "_is_avx512_bf16_supported", bool)  # AMX implies it
    return bool(query())


def is_depthwise(geometry: Geometry, w: Tensor) -> bool:
    """Whether it is a depthwise convolution, whose strided gradients take 20 times as long."""
    return isinstance(geometry, ConvGeometry) and geometry.groups > 1 and w.shape[1] == 1
