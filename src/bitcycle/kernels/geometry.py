"""Geometries: the three products of every multiplying op, as products of two operands.

A geometry is the shape of an op (strides, padding, groups) without its operands. A kernel
(`kernels.base`) multiplies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from bitcycle.kernels.base import Kernel
from bitcycle.quantizers.base import OperandView, Quantized


class Geometry(Protocol):
    """An op with two operands: `a` (the input) and `w` (the weight, or a second activation)."""

    def output(self, kernel: Kernel, a: Quantized, w: Quantized, bias: Tensor | None) -> Tensor:
        """a x w (+ bias)."""

    def grad_input(self, kernel: Kernel, e: Quantized, w: Quantized, a_shape: torch.Size) -> Tensor:
        """e x w: the error at the input."""

    def grad_weight(
        self, kernel: Kernel, e: Quantized, a: Quantized, w_shape: torch.Size
    ) -> Tensor:
        """e x a: the gradient of the second operand."""

    def grad_bias(self, e: Tensor) -> Tensor:
        """The error summed over everything but the output channels."""

    def macs(self, a_shape: torch.Size, w_shape: torch.Size) -> int:
        """Multiply-accumulates of the output."""

    def operand_view(self, matmul: str, operand: str, shape: torch.Size) -> OperandView:
        """The axis that a matmul sums over, in the operand "a", "w" or "e" (the error)."""


@dataclass(frozen=True)
class LinearGeometry:
    """output = a w^T: a (..., in), w (out, in)."""

    def output(self, kernel: Kernel, a: Quantized, w: Quantized, bias: Tensor | None) -> Tensor:
        """(..., in) x (out, in) -> (..., out)."""
        return kernel.gemm(a, w, bias)

    def grad_input(self, kernel: Kernel, e: Quantized, w: Quantized, a_shape: torch.Size) -> Tensor:
        """(..., out) x (out, in) -> (..., in)."""
        if e.scale is not None and e.scale.numel() > 1:  # one for each sample
            return kernel.gemm(as_rows(e), transposed(w)).view(a_shape)
        return kernel.gemm(e, transposed(w))

    def grad_weight(
        self, kernel: Kernel, e: Quantized, a: Quantized, w_shape: torch.Size
    ) -> Tensor:
        """(tokens, out)^T x (tokens, in) -> (out, in)."""
        return kernel.gemm(transposed(as_rows(e)), transposed(as_rows(a)))

    def grad_bias(self, e: Tensor) -> Tensor:
        """(..., out) -> (out,)."""
        return e.reshape(math.prod(e.shape[:-1]), e.shape[-1]).sum(0)

    def macs(self, a_shape: torch.Size, w_shape: torch.Size) -> int:
        """Multiply-accumulates of the output."""
        return math.prod(a_shape) * w_shape[0]

    def operand_view(self, matmul: str, operand: str, shape: torch.Size) -> OperandView:
        """The features for output and grad_input, the tokens for grad_weight."""
        if operand == "w":  # (out, in)
            dim = 1 if matmul == "output" else 0
            return OperandView(matmul, tuple(shape), dim, tuple(shape), (0, 1))
        if matmul == "grad_weight":
            rows = math.prod(shape[:-1])
            return OperandView(matmul, (rows, shape[-1]), 0, is_tokens=True)
        return OperandView(matmul, tuple(shape), len(shape) - 1)


@dataclass(frozen=True)
class MatMulGeometry:
    """output = a w for two activations with at least two dimensions, batches broadcast."""

    def output(self, kernel: Kernel, a: Quantized, w: Quantized, bias: Tensor | None) -> Tensor:
        """(..., M, K) x (..., K, N) -> (..., M, N)."""
        return kernel.gemm(a, transposed(w))

    def grad_input(self, kernel: Kernel, e: Quantized, w: Quantized, a_shape: torch.Size) -> Tensor:
        """(..., M, N) x (..., K, N)^T -> (..., M, K), summed over broadcast batches."""
        return kernel.gemm(e, w).sum_to_size(a_shape)

    def grad_weight(
        self, kernel: Kernel, e: Quantized, a: Quantized, w_shape: torch.Size
    ) -> Tensor:
        """(..., M, K)^T x (..., M, N) -> (..., K, N), summed over broadcast batches."""
        return kernel.gemm(transposed(a), transposed(e)).sum_to_size(w_shape)

    def grad_bias(self, e: Tensor) -> Tensor:
        """A product of activations has no bias."""
        raise AssertionError("MatMul has no bias")

    def macs(self, a_shape: torch.Size, w_shape: torch.Size) -> int:
        """Multiply-accumulates of the output."""
        batch: torch.Size = torch.broadcast_shapes(a_shape[:-2], w_shape[:-2])  # type: ignore[no-untyped-call]
        return math.prod(batch) * math.prod(a_shape[-2:]) * w_shape[-1]

    def operand_view(self, matmul: str, operand: str, shape: torch.Size) -> OperandView:
        """K for output, N for grad_input, M for grad_weight."""
        is_last = {"output": operand == "a", "grad_input": True, "grad_weight": False}[matmul]
        return OperandView(matmul, tuple(shape), len(shape) - (1 if is_last else 2))


@dataclass(frozen=True)
class ConvGeometry:
    """A (transposed) convolution of 1, 2 or 3 dimensions.

    `end_padding` is what a "same" padding of an even kernel adds at the end of each dimension
    beyond the symmetric `padding`; it is zeros of the grid's value 0, like all padding.
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    transposed: bool = False
    output_padding: tuple[int, ...] = ()
    end_padding: tuple[int, ...] = ()

    def output(self, kernel: Kernel, a: Quantized, w: Quantized, bias: Tensor | None) -> Tensor:
        """(N, Cin, *space) x (Cout, Cin/groups, *k) -> (N, Cout, *space)."""
        return kernel.conv_output(self, a, w, bias)

    def grad_input(self, kernel: Kernel, e: Quantized, w: Quantized, a_shape: torch.Size) -> Tensor:
        """(N, Cout, *space) x weight -> (N, Cin, *space)."""
        return kernel.conv_grad_input(self, e, w, a_shape)

    def grad_weight(
        self, kernel: Kernel, e: Quantized, a: Quantized, w_shape: torch.Size
    ) -> Tensor:
        """(N, Cout, *space) x (N, Cin, *space) -> weight."""
        return kernel.conv_grad_weight(self, e, a, w_shape)

    def grad_bias(self, e: Tensor) -> Tensor:
        """(N, Cout, *space) -> (Cout,)."""
        return e.sum([d for d in range(e.dim()) if d != 1])

    def macs(self, a_shape: torch.Size, w_shape: torch.Size) -> int:
        """Multiply-accumulates of the output."""
        if self.transposed:  # every input pixel meets every weight
            return math.prod(a_shape) * math.prod(w_shape[1:])
        size = self.output_size(a_shape[2:], w_shape[2:])
        return a_shape[0] * math.prod(size) * math.prod(w_shape)

    def operand_view(self, matmul: str, operand: str, shape: torch.Size) -> OperandView:
        """The channels of a group for output and grad_input, the pixels of a map for grad_weight.

        The sum over a kernel's taps has no blocks of its own: blocks run inside the channels.
        """
        if operand == "w":  # (Cout, Cin / groups, *k), or (Cin, Cout / groups, *k) if transposed
            grouped = (self.groups, shape[0] // self.groups, *shape[1:])
            is_first = (matmul == "grad_input") != self.transposed
            return OperandView(matmul, grouped, 1 if is_first else 2, grouped, (1, 2))
        if matmul == "grad_weight":
            return OperandView(matmul, (*shape[:2], math.prod(shape[2:])), 2)
        grouped = (shape[0], self.groups, shape[1] // self.groups, *shape[2:])
        return OperandView(matmul, grouped, 2)

    @property
    def num_dims(self) -> int:
        """Spatial dimensions."""
        return len(self.stride)

    def output_size(self, space: Sequence[int], kernel: Sequence[int]) -> tuple[int, ...]:
        """The spatial size of the output of a convolution that is not transposed."""
        ends = self.end_padding or (0,) * self.num_dims
        sides = zip(space, kernel, self.stride, self.padding, ends, self.dilation, strict=True)
        return tuple((n + 2 * p + end - d * (k - 1) - 1) // s + 1 for n, k, s, p, end, d in sides)

    # -- the same three of float tensors -----------------------------------------------------------

    def convolve(self, a: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
        """The output."""
        return torch.convolution(
            self._pad(a), w, bias, self.stride, self.padding, self.dilation, self.transposed,
            self.output_padding or (0,) * self.num_dims, self.groups,
        )  # fmt: skip

    def input_gradient(self, e: Tensor, w: Tensor, a_shape: torch.Size) -> Tensor:
        """The error at the input."""
        ends = self.end_padding or (0,) * self.num_dims
        space = [n + end for n, end in zip(a_shape[2:], ends, strict=True)]
        like_input = _empty_like_format((*a_shape[:2], *space), e)
        grad = self._backward(e, like_input, w, (True, False, False))[0]
        for dim, end in enumerate(ends, start=2):
            if end:
                grad = grad.narrow(dim, 0, grad.shape[dim] - end)
        return grad

    def weight_gradient(self, e: Tensor, a: Tensor, w_shape: torch.Size) -> Tensor:
        """The gradient of the weight."""
        like_weight = _empty_like_format(w_shape, e)
        return self._backward(e, self._pad(a), like_weight, (False, True, False))[1]

    def _pad(self, a: Tensor) -> Tensor:
        """With the zeros that an even kernel's "same" padding adds at the ends."""
        if not any(self.end_padding):
            return a
        return F.pad(a, [n for end in reversed(self.end_padding) for n in (0, end)])

    def _backward(
        self, e: Tensor, a: Tensor, w: Tensor, mask: tuple[bool, bool, bool]
    ) -> tuple[Tensor, Tensor, Tensor]:
        grads: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
            e, a, w, None, self.stride, self.padding, self.dilation, self.transposed,
            self.output_padding or (0,) * self.num_dims, self.groups, mask,
        )  # fmt: skip
        return grads


def _empty_like_format(shape: Sequence[int], like: Tensor) -> Tensor:
    """Never read: stands for the operand a backward product does not need, in its layout."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    layout = formats.get(like.dim())
    if layout is None or like.is_contiguous() or not like.is_contiguous(memory_format=layout):
        layout = torch.contiguous_format
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=layout)


# -- views of an operand --------------------------------------------------------------------------


def transposed(q: Quantized) -> Quantized:
    """The last two dimensions exchanged, of the numbers and of scales along them."""
    values, codes, scale, offset = (
        x.transpose(-1, -2) if x is not None and x.dim() > 1 else x
        for x in (q.values, q.codes, q.scale, q.offset)
    )
    return replace(q, values=values, codes=codes, scale=scale, offset=offset)


def as_rows(q: Quantized) -> Quantized:
    """(..., n) as (rows, n); scales along the leading dimensions become one per row."""
    numbers = q.codes if q.values is None else q.values
    assert numbers is not None
    if numbers.dim() == 2:
        return q
    shape = numbers.shape
    rows = math.prod(shape[:-1])
    scale, offset = (
        x
        if x is None or x.numel() == 1
        else x.expand(*shape[:-1], x.shape[-1]).reshape(rows, x.shape[-1])
        for x in (q.scale, q.offset)
    )
    values, codes = (None if x is None else x.reshape(rows, shape[-1]) for x in (q.values, q.codes))
    return replace(q, values=values, codes=codes, scale=scale, offset=offset)
