"""The three products of a product of two activations, of codes with one scale and offset each."""

from __future__ import annotations

import itertools
from dataclasses import replace

import torch
from torch import Tensor

from bitcycle.kernels.linear import product
from bitcycle.kernels.operand import Arithmetic, Operand
from bitcycle.quantizers.base import Quantized


def matmul_output(arithmetic: Arithmetic, a: Quantized, w: Quantized) -> Tensor:
    """(..., M, K) x (..., K, N) -> (..., M, N)."""
    return _batched(arithmetic, arithmetic.first(a), _turned(arithmetic.second(w)))


def matmul_grad_first(
    arithmetic: Arithmetic, e: Quantized, w: Quantized, a_shape: torch.Size
) -> Tensor:
    """(..., M, N) x (..., K, N)^T -> (..., M, K), summed over broadcast batches."""
    return _batched(arithmetic, arithmetic.first(e), arithmetic.second(w)).sum_to_size(a_shape)


def matmul_grad_second(
    arithmetic: Arithmetic, e: Quantized, a: Quantized, w_shape: torch.Size
) -> Tensor:
    """(..., M, K)^T x (..., M, N) -> (..., K, N), summed over broadcast batches."""
    x, y = _turned(arithmetic.first(a)), _turned(arithmetic.second(e))
    return _batched(arithmetic, x, y).sum_to_size(w_shape)


def _turned(x: Operand) -> Operand:
    return replace(x, numbers=x.numbers.transpose(-1, -2))


def _batched(arithmetic: Arithmetic, x: Operand, w: Operand) -> Tensor:
    """(..., M, K) x (..., N, K)^T -> (..., M, N), batches broadcast."""
    if x.numbers.is_floating_point():
        length = x.numbers.shape[-1]
        main = torch.matmul(x.numbers, w.numbers.transpose(-1, -2)).to(torch.float32)
        first = x.sum([-1], keepdim=True) * (x.scale * w.offset)
        second = (w.sum([-1], keepdim=True) * w.scale + w.offset * length) * x.offset
        return main * (x.scale * w.scale) + first + second.transpose(-1, -2)
    shapes = x.numbers.shape[:-2], w.numbers.shape[:-2]
    batch = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    xs = x.numbers.expand(*batch, *x.numbers.shape[-2:])
    ws = w.numbers.expand(*batch, *w.numbers.shape[-2:])
    output = x.scale.new_empty(*batch, xs.shape[-2], ws.shape[-2])
    for at in itertools.product(*map(range, batch)):  # there is no batched integer product
        output[at] = product(arithmetic, replace(x, numbers=xs[at]), replace(w, numbers=ws[at]))
    return output
