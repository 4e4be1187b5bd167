"""The products of linear layers and of two activations, from codes.

A kernel brings the function that multiplies rows of codes, x (..., K) and y (N, K) -> x y^T. It
may leave the dtype of the result to its caller. Where it returns None, for scales on axes that it
has no product for, the values are multiplied in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bitcycle.kernels.geometry import Geometry, as_rows, transposed
from bitcycle.kernels.simulate import FloatProducts
from bitcycle.quantizers.base import Quantized

MultiplyRows = Callable[[Quantized, Quantized, Tensor | None, torch.dtype | None], Tensor | None]


@dataclass(frozen=True)
class LinearProducts:
    """a w^T: a (..., in), w (out, in).

    fold_error: multiplies the error by an input that has a scale per row, if `multiply` does not.
    """

    geometry: Geometry
    multiply: MultiplyRows
    fold_error: Callable[[Quantized, Quantized], Tensor | None] | None = None

    def output(
        self, a: Quantized, w: Quantized, bias: Tensor | None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """(..., in) x (out, in) -> (..., out); the input may have a scale per row."""
        output = self.multiply(as_rows(a) if has_rows(a) else a, w, bias, dtype)
        if output is None:
            return FloatProducts(self.geometry).output(a, w, bias, dtype)
        return output.view(*numbers_of(a).shape[:-1], output.shape[-1]).to(dtype=dtype)

    def grad_input(
        self, e: Quantized, w: Quantized, a_shape: torch.Size, dtype: torch.dtype | None = None
    ) -> Tensor:
        """(..., out) x (out, in) -> (..., in); the error may have a scale per sample."""
        grad = self.multiply(as_rows(e) if has_rows(e) else e, transposed(w), None, dtype)
        if grad is None:
            return FloatProducts(self.geometry).grad_input(e, w, a_shape, dtype)
        return grad.view(a_shape).to(dtype=dtype)

    def grad_weight(
        self, e: Quantized, a: Quantized, w_shape: torch.Size, dtype: torch.dtype | None = None
    ) -> Tensor:
        """(tokens, out)^T x (tokens, in) -> (out, in)."""
        first, second = transposed(as_rows(e)), transposed(as_rows(a))
        if self.fold_error is not None and has_rows(a) and not has_rows(e):
            grad = self.fold_error(first, second)
        else:
            grad = self.multiply(first, second, None, dtype)
        if grad is None:
            return FloatProducts(self.geometry).grad_weight(e, a, w_shape, dtype)
        return grad.to(dtype=dtype)


@dataclass(frozen=True)
class MatMulProducts:
    """a w for two activations."""

    geometry: Geometry
    multiply: MultiplyRows

    def output(
        self, a: Quantized, w: Quantized, bias: Tensor | None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """(..., M, K) x (..., K, N) -> (..., M, N)."""
        output = self.multiply(a, transposed(w), None, dtype)
        if output is None:
            return FloatProducts(self.geometry).output(a, w, bias, dtype)
        return output.to(dtype=dtype)

    def grad_input(
        self, e: Quantized, w: Quantized, a_shape: torch.Size, dtype: torch.dtype | None = None
    ) -> Tensor:
        """(..., M, N) x (..., K, N)^T -> (..., M, K), summed over broadcast batches."""
        is_summed = e.codes is not None and e.codes.shape[:-2] != a_shape[:-2]
        grad = self.multiply(e, w, None, None if is_summed else dtype)
        if grad is None:
            return FloatProducts(self.geometry).grad_input(e, w, a_shape, dtype)
        return grad.sum_to_size(a_shape).to(dtype=dtype)

    def grad_weight(
        self, e: Quantized, a: Quantized, w_shape: torch.Size, dtype: torch.dtype | None = None
    ) -> Tensor:
        """(..., M, K)^T x (..., M, N) -> (..., K, N), summed over broadcast batches."""
        is_summed = e.codes is not None and e.codes.shape[:-2] != w_shape[:-2]
        grad = self.multiply(transposed(a), transposed(e), None, None if is_summed else dtype)
        if grad is None:
            return FloatProducts(self.geometry).grad_weight(e, a, w_shape, dtype)
        return grad.sum_to_size(w_shape).to(dtype=dtype)


def axis_of(scale: Tensor) -> str:
    """Where the scales of a matrix lie: "" for one, "row", "k" (the summed axis), or "other"."""
    if scale.numel() == 1:
        return ""
    if scale.dim() != 2 or min(scale.shape) != 1:
        return "other"
    return "row" if scale.shape[0] > 1 else "k"


def has_rows(q: Quantized) -> bool:
    """Whether there are several scales: of an activation or an error, along its rows."""
    return q.scale is not None and q.scale.numel() > 1


def numbers_of(q: Quantized) -> Tensor:
    """The codes, or the values of an operand without them."""
    numbers = q.codes if q.codes is not None else q.values
    assert numbers is not None
    return numbers
