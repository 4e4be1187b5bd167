"""Kernels that multiply codes: which products they keep, and float32 for the others."""

from __future__ import annotations

from math import prod
from typing import ClassVar

import torch
from torch import Tensor

from bitcycle.kernels.base import FLOAT32
from bitcycle.kernels.convolution import conv_grad_input, conv_grad_weight, conv_output
from bitcycle.kernels.geometry import ConvGeometry, Geometry, LinearGeometry, MatMulGeometry
from bitcycle.kernels.linear import linear_grad_input, linear_grad_weight, linear_output
from bitcycle.kernels.matmul import matmul_grad_first, matmul_grad_second, matmul_output
from bitcycle.kernels.operand import Arithmetic
from bitcycle.kernels.simulate import Simulate
from bitcycle.quantizers.base import Quantized

_FLOAT = Simulate()


class Coded:
    """Multiplies whole numbers where it can, the float32 values of the codes where it cannot.

    It can when both operands are codes and their scales do not lie on an axis that is summed over:
    one scale each, or one per channel of the result for the second operand.
    """

    name: ClassVar[str]
    arithmetic: ClassVar[Arithmetic]
    rounding: ClassVar[float] = FLOAT32
    takes_codes: ClassVar[bool] = True
    second_dtype: ClassVar[torch.dtype] = torch.uint8

    def takes(self, geometry: Geometry, x: Quantized, w: Quantized) -> bool:
        """Whether both are codes that this arithmetic multiplies, the first with one scale."""
        if x.codes is None or w.codes is None or not _is_scalar(x.scale):
            return False
        if x.codes.numel() == 0 or w.codes.numel() == 0:  # an empty batch multiplies nothing
            return False
        return not (isinstance(geometry, ConvGeometry) and geometry.transposed)

    def can_sum(self, length: int) -> bool:
        """Whether a convolution may sum over so many products; others are split if need be."""
        return True

    def output(self, geometry: Geometry, a: Quantized, w: Quantized, bias: Tensor | None) -> Tensor:
        """act x weight (+ bias)."""
        if self.takes(geometry, a, w) and lies_on(w.scale, 0):
            if isinstance(geometry, LinearGeometry):
                return linear_output(self.arithmetic, a, w, bias)
            if isinstance(geometry, ConvGeometry) and self.can_sum(_num_taps(w, 0)):
                return conv_output(self.arithmetic, geometry, a, w, bias)
            if isinstance(geometry, MatMulGeometry) and _is_scalar(w.scale):
                return matmul_output(self.arithmetic, a, w)
        return _FLOAT.output(geometry, a, w, bias)

    def grad_input(
        self, geometry: Geometry, e: Quantized, w: Quantized, a_shape: torch.Size
    ) -> Tensor:
        """error x weight."""
        if self.takes(geometry, e, w) and lies_on(w.scale, 1):
            if isinstance(geometry, LinearGeometry):
                return linear_grad_input(self.arithmetic, e, w)
            if _is_invertible(geometry, w) and self.can_sum(_num_taps(w, 1)):
                assert isinstance(geometry, ConvGeometry)
                return conv_grad_input(self.arithmetic, geometry, e, w, a_shape)
            if isinstance(geometry, MatMulGeometry) and _is_scalar(w.scale):
                return matmul_grad_first(self.arithmetic, e, w, a_shape)
        return _FLOAT.grad_input(geometry, e, w, a_shape)

    def grad_weight(
        self, geometry: Geometry, e: Quantized, a: Quantized, w_shape: torch.Size
    ) -> Tensor:
        """error x act."""
        if self.takes(geometry, e, a) and _is_scalar(a.scale):
            if isinstance(geometry, LinearGeometry):
                return linear_grad_weight(self.arithmetic, e, a)
            if isinstance(geometry, ConvGeometry):
                return conv_grad_weight(self.arithmetic, geometry, e, a, w_shape)
            if isinstance(geometry, MatMulGeometry):
                return matmul_grad_second(self.arithmetic, e, a, w_shape)
        return _FLOAT.grad_weight(geometry, e, a, w_shape)


def _is_scalar(scale: Tensor | None) -> bool:
    return scale is not None and scale.numel() == 1


def lies_on(scale: Tensor | None, dim: int) -> bool:
    """Whether a weight has one scale, or one per index of this dimension."""
    if scale is None:
        return False
    return scale.numel() == 1 or all(n == 1 for d, n in enumerate(scale.shape) if d != dim)


def _num_taps(w: Quantized, dim: int) -> int:
    """How many weights meet in one result: all but those along `dim`."""
    assert w.codes is not None
    return prod([n for d, n in enumerate(w.codes.shape) if d != dim])


def _is_invertible(geometry: Geometry, w: Quantized) -> bool:
    """Whether grad_input is a convolution of the error: stride 1, one group, no wide padding."""
    if not isinstance(geometry, ConvGeometry):
        return False
    assert w.codes is not None
    reaches = all(
        d * (k - 1) >= p
        for d, k, p in zip(geometry.dilation, w.codes.shape[2:], geometry.padding, strict=True)
    )
    return geometry.groups == 1 and all(s == 1 for s in geometry.stride) and reaches
