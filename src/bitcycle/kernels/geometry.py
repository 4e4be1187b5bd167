"""The three float products of every multiplying op: output, grad_input, grad_weight.

A geometry is the shape of an op (strides, padding, groups) without its operands. Kernels read it;
the float products here are what they must agree with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class Geometry(Protocol):
    """An op with two operands: `a` (the input) and `w` (the weight, or a second activation)."""

    def output(self, a: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        """a x w (+ bias)."""

    def grad_input(self, e: Tensor, w: Tensor, a_shape: torch.Size) -> Tensor:
        """e x w: the error at the input."""

    def grad_weight(self, e: Tensor, a: Tensor, w_shape: torch.Size) -> Tensor:
        """e x a: the gradient of the second operand."""

    def grad_bias(self, e: Tensor) -> Tensor:
        """The error summed over everything but the output channels."""


@dataclass(frozen=True)
class LinearGeometry:
    """output = a w^T: a (..., in), w (out, in)."""

    def output(self, a: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        """(..., in) x (out, in) -> (..., out)."""
        return F.linear(a, w, bias)

    def grad_input(self, e: Tensor, w: Tensor, a_shape: torch.Size) -> Tensor:
        """(..., out) x (out, in) -> (..., in)."""
        return torch.matmul(e, w)

    def grad_weight(self, e: Tensor, a: Tensor, w_shape: torch.Size) -> Tensor:
        """(tokens, out)^T x (tokens, in) -> (out, in)."""
        tokens = math.prod(a.shape[:-1])
        return e.reshape(tokens, w_shape[0]).t() @ a.reshape(tokens, w_shape[1])

    def grad_bias(self, e: Tensor) -> Tensor:
        """(..., out) -> (out,)."""
        return e.reshape(math.prod(e.shape[:-1]), e.shape[-1]).sum(0)


@dataclass(frozen=True)
class MatMulGeometry:
    """output = a w for two activations with at least two dimensions, batches broadcast."""

    def output(self, a: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        """(..., M, K) x (..., K, N) -> (..., M, N)."""
        return torch.matmul(a, w)

    def grad_input(self, e: Tensor, w: Tensor, a_shape: torch.Size) -> Tensor:
        """(..., M, N) x (..., K, N)^T -> (..., M, K), summed over broadcast batches."""
        return torch.matmul(e, w.transpose(-1, -2)).sum_to_size(a_shape)

    def grad_weight(self, e: Tensor, a: Tensor, w_shape: torch.Size) -> Tensor:
        """(..., M, K)^T x (..., M, N) -> (..., K, N), summed over broadcast batches."""
        return torch.matmul(a.transpose(-1, -2), e).sum_to_size(w_shape)

    def grad_bias(self, e: Tensor) -> Tensor:
        """A product of activations has no bias."""
        raise AssertionError("MatMul has no bias")


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

    @property
    def num_dims(self) -> int:
        """Spatial dimensions."""
        return len(self.stride)

    def pad(self, a: Tensor) -> Tensor:
        """With the zeros that an even kernel's "same" padding adds at the ends."""
        if not any(self.end_padding):
            return a
        return F.pad(a, [n for end in reversed(self.end_padding) for n in (0, end)])

    def output(self, a: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        """(N, Cin, *space) x (Cout, Cin/groups, *k) -> (N, Cout, *space)."""
        return torch.convolution(
            self.pad(a), w, bias, self.stride, self.padding, self.dilation, self.transposed,
            self.output_padding or (0,) * self.num_dims, self.groups,
        )  # fmt: skip

    def _backward(
        self, e: Tensor, a: Tensor, w: Tensor, mask: tuple[bool, bool, bool]
    ) -> tuple[Tensor, Tensor, Tensor]:
        grads: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
            e, a, w, None, self.stride, self.padding, self.dilation, self.transposed,
            self.output_padding or (0,) * self.num_dims, self.groups, mask,
        )  # fmt: skip
        return grads

    def grad_input(self, e: Tensor, w: Tensor, a_shape: torch.Size) -> Tensor:
        """(N, Cout, *space) x weight -> (N, Cin, *space)."""
        ends = self.end_padding or (0,) * self.num_dims
        space = [n + end for n, end in zip(a_shape[2:], ends, strict=True)]
        like_input = _empty_like_format((*a_shape[:2], *space), e)
        grad = self._backward(e, like_input, w, (True, False, False))[0]
        for dim, end in enumerate(ends, start=2):
            if end:
                grad = grad.narrow(dim, 0, grad.shape[dim] - end)
        return grad

    def grad_weight(self, e: Tensor, a: Tensor, w_shape: torch.Size) -> Tensor:
        """(N, Cout, *space) x (N, Cin, *space) -> weight."""
        like_weight = _empty_like_format(w_shape, e)
        return self._backward(e, self.pad(a), like_weight, (False, True, False))[1]

    def windows(self, a: Tensor, kernel: Sequence[int]) -> Tensor:
        """What each tap of the kernel sees, zeros at the border: a view (*kernel, Cin, N, *out).

        Rows of the image are stretches of memory in it, so that a copy of the view is fast.
        """
        ends = self.end_padding or (0,) * self.num_dims
        sides = [n for p, end in zip(self.padding, ends, strict=True) for n in (p + end, p)]
        planes = F.pad(a.transpose(0, 1), [*reversed(sides)]).contiguous()
        channel, batch, *space = planes.stride()
        out = [
            (n - d * (k - 1) - 1) // s + 1
            for n, d, k, s in zip(planes.shape[2:], self.dilation, kernel, self.stride, strict=True)
        ]
        steps = [n * s for n, s in zip(space, self.stride, strict=True)]
        taps = [n * d for n, d in zip(space, self.dilation, strict=True)]
        return planes.as_strided(
            (*kernel, *planes.shape[:2], *out), (*taps, channel, batch, *steps)
        )

    def grad_bias(self, e: Tensor) -> Tensor:
        """(N, Cout, *space) -> (Cout,)."""
        return e.sum([d for d in range(e.dim()) if d != 1])


def _empty_like_format(shape: Sequence[int], like: Tensor) -> Tensor:
    """Never read: stands for the operand a backward product does not need, in its layout."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    layout = formats.get(like.dim())
    if layout is None or like.is_contiguous() or not like.is_contiguous(memory_format=layout):
        layout = torch.contiguous_format
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=layout)
