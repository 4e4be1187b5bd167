"""Kernels: what multiplies quantized tensors, forward and backward."""

from bitcycle.kernels.base import KERNELS, Kernel
from bitcycle.kernels.choice import decide_kernel, has_bf16, requested_kernel
from bitcycle.kernels.geometry import ConvGeometry, Geometry, LinearGeometry, MatMulGeometry
from bitcycle.kernels.integer import exact_bits
from bitcycle.kernels.mixed import UNDECIDED, Mixed, make_kernel

__all__ = [
    "KERNELS",
    "UNDECIDED",
    "ConvGeometry",
    "Geometry",
    "Kernel",
    "LinearGeometry",
    "MatMulGeometry",
    "Mixed",
    "requested_kernel",
    "decide_kernel",
    "exact_bits",
    "has_bf16",
    "make_kernel",
]
