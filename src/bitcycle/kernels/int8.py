"""`int8`: multiplies codes as 8-bit integers with exact 32-bit sums.

The result differs from float32 products of the same values only by float32 rounding. Products
that a processor cannot form exactly, or whose scales lie on the summed axis, are float32, and so
are batches of small ones.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from bitcycle.kernels.base import KERNELS
from bitcycle.kernels.coded import Coded
from bitcycle.kernels.geometry import ConvGeometry, Geometry, MatMulGeometry
from bitcycle.kernels.integer import MAX_REDUCTION, IntegerArithmetic, exact_bits
from bitcycle.quantizers.base import Quantized

MIN_BATCHED = 1 << 24  # multiplications: there is no batched integer product, only one by one


class Int8(Coded):
    """All three products in integers where scales and processor allow."""

    name = "int8"
    second_dtype = torch.int8
    arithmetic = IntegerArithmetic()

    def takes(self, geometry: Geometry, x: Quantized, w: Quantized) -> bool:
        """Whether the bits of both together are exact on this device."""
        if not super().takes(geometry, x, w):
            return False
        assert x.codes is not None
        assert w.codes is not None
        device = x.codes.device.type
        if isinstance(geometry, ConvGeometry) and device != "cpu":
            return False  # there is no integer convolution elsewhere
        if isinstance(geometry, MatMulGeometry) and _is_many_small(x.codes, w.codes):
            return False
        return bool(x.top + w.top <= exact_bits(device))

    def can_sum(self, length: int) -> bool:
        """Whether a convolution over so many products keeps its 32-bit sums."""
        return length <= MAX_REDUCTION


def _is_many_small(x: Tensor, w: Tensor) -> bool:
    """Whether a batch of products, such as attention heads, is faster as one of float32."""
    num_batches = max(prod(x.shape[:-2]), prod(w.shape[:-2]))
    return num_batches > 1 and prod(x.shape[-2:]) * max(w.shape[-2:]) < MIN_BATCHED


KERNELS.register("int8")(Int8())
