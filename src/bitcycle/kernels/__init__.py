"""Kernels: what multiplies quantized tensors, forward and backward."""

from bitcycle.kernels.base import KERNELS, Kernel, choose_kernel
from bitcycle.kernels.geometry import ConvGeometry, Geometry, LinearGeometry, MatMulGeometry

__all__ = [
    "KERNELS",
    "ConvGeometry",
    "Geometry",
    "Kernel",
    "LinearGeometry",
    "MatMulGeometry",
    "choose_kernel",
]
