"""Products with a prepacked weight, for recurrent layers.

A recurrent layer multiplies by the same weight at every time step. The weight's codes are
dequantized, or packed for the processor, once instead of at every step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from bitcycle.kernels.base import Kernel
from bitcycle.kernels.bf16 import Bf16, near_zero
from bitcycle.kernels.coded import Coded, lies_on
from bitcycle.kernels.geometry import LinearGeometry
from bitcycle.kernels.integer import (
    MAX_REDUCTION,
    IntegerArithmetic,
    multiply_packed,
    pack_weight,
)
from bitcycle.kernels.mixed import Mixed
from bitcycle.kernels.operand import Operand, per_channel
from bitcycle.quantizers.base import Quantized

Multiply = Callable[[Quantized], Tensor]
_GEOMETRY = LinearGeometry()


def prepack_output(kernel: Kernel, w: Quantized, bias: Tensor | None) -> Multiply:
    """x -> x w^T (+ bias), as `kernel.output` of a linear layer: x (rows, in), w (out, in)."""
    kernel = kernel.parts[0] if isinstance(kernel, Mixed) else kernel
    if isinstance(kernel, Coded) and w.codes is not None and lies_on(w.scale, 0):
        return _PrepackedCodes(kernel, w, bias)
    return _PrepackedValues(w, bias)


def prepack_grad_input(kernel: Kernel, w: Quantized) -> Multiply:
    """e -> e w, as `kernel.grad_input` of a linear layer: e (rows, out), w (out, in)."""
    kernel = kernel.parts[1] if isinstance(kernel, Mixed) else kernel
    if isinstance(kernel, Coded) and w.codes is not None:
        if isinstance(kernel, Bf16) and lies_on(w.scale, 0):
            return _PrepackedBf16(kernel, w)
        if lies_on(w.scale, 1):
            return _PrepackedCodes(kernel, _transposed(w), None)
    return _PrepackedValues(_transposed(w), None)


def _transposed(w: Quantized) -> Quantized:
    """The transposed weight; its scales lie on an axis, or are one."""
    values, codes, scale, offset = (
        x.t() if x is not None and x.dim() == 2 else x
        for x in (w.values, w.codes, w.scale, w.offset)
    )
    return replace(w, values=values, codes=codes, scale=scale, offset=offset)


class _PrepackedValues:
    """The weight's values, multiplied out once, in float32."""

    def __init__(self, w: Quantized, bias: Tensor | None) -> None:
        self._values, self._bias = w.dequantize(), bias

    def __call__(self, x: Quantized) -> Tensor:
        return F.linear(x.dequantize(), self._values, self._bias)


class _PrepackedCodes:
    """The weight's codes, packed and summed once; see `kernels.operand` for the sums."""

    def __init__(self, kernel: Coded, w: Quantized, bias: Tensor | None) -> None:
        self._kernel, self._w, self._bias = kernel, w, bias
        y = kernel.arithmetic.second(w)
        num_out, num_in = y.numbers.shape
        self._scale, self._offset = per_channel(y.scale, num_out), per_channel(y.offset, num_out)
        self._sums = y.sum([1]) * self._scale + self._offset * num_in
        self._second = y
        self._packed: Tensor | None = None
        self._values: _PrepackedValues | None = None

    def __call__(self, x: Quantized) -> Tensor:
        if not self._kernel.takes(_GEOMETRY, x, self._w):
            self._values = self._values or _PrepackedValues(self._w, self._bias)
            return self._values(x)
        a = self._kernel.arithmetic.first(x)
        constant = self._sums * a.offset
        if self._bias is not None:
            constant += self._bias
        output = self._gemm(a, self._scale * a.scale, constant)
        return output.addcmul_(a.sum([1], keepdim=True), self._offset * a.scale)

    def _gemm(self, a: Operand, scale: Tensor, constant: Tensor) -> Tensor:
        y, arithmetic = self._second, self._kernel.arithmetic
        is_packable = isinstance(arithmetic, IntegerArithmetic) and a.numbers.device.type == "cpu"
        if not is_packable or y.numbers.shape[1] > MAX_REDUCTION:
            return arithmetic.gemm(a, y, scale, constant)
        if self._packed is None:
            self._packed = pack_weight(y.numbers.contiguous(), a.numbers.shape)
        return multiply_packed(a.numbers, self._packed, scale, constant)


class _PrepackedBf16:
    """grad_input in bfloat16, the weight's scales folded into the error: as `Bf16.grad_input`."""

    def __init__(self, kernel: Bf16, w: Quantized) -> None:
        self._kernel, self._w, y = kernel, w, near_zero(w)
        self._numbers = y.numbers
        self._scale, self._offset = y.scale.reshape(-1), y.offset.reshape(-1, 1)
        self._values: _PrepackedValues | None = None

    def __call__(self, e: Quantized) -> Tensor:
        if not self._kernel.takes(_GEOMETRY, e, self._w):
            self._values = self._values or _PrepackedValues(_transposed(self._w), None)
            return self._values(e)
        error = e.dequantize()
        main = (error * self._scale).to(torch.bfloat16) @ self._numbers
        return main.to(torch.float32) + error @ self._offset.expand(error.shape[1], 1)
