"""Kernels: what multiplies quantized tensors, forward and backward."""

from bitcycle.kernels.base import KERNELS, Kernel, make_kernel
from bitcycle.kernels.choice import decide_kernel, requested_kernel
from bitcycle.kernels.geometry import (
    ConvGeometry,
    Geometry,
    LinearGeometry,
    MatMulGeometry,
    PointwiseGeometry,
)

__all__ = [
    "KERNELS",
    "ConvGeometry",
    "Geometry",
    "Kernel",
    "LinearGeometry",
    "MatMulGeometry",
    "PointwiseGeometry",
    "requested_kernel",
    "decide_kernel",
    "make_kernel",
]
