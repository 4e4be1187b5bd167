"""The three products of a linear layer, of operands that are codes with scales and offsets."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from bitcycle.kernels.operand import Arithmetic, Operand, per_channel
from bitcycle.quantizers.base import Quantized


def linear_output(
    arithmetic: Arithmetic, a: Quantized, w: Quantized, bias: Tensor | None
) -> Tensor:
    """(..., in) x (out, in) -> (..., out); the weight's scale is one, or one per row."""
    x, y = arithmetic.first(a), arithmetic.second(w)
    *batch, columns = x.numbers.shape
    rows = replace(x, numbers=x.numbers.reshape(math.prod(batch), columns))
    return product(arithmetic, rows, y, bias).view(*batch, y.numbers.shape[0])


def product(arithmetic: Arithmetic, x: Operand, w: Operand, bias: Tensor | None = None) -> Tensor:
    """Values (M, K) x values (N, K)^T (+ bias): x has one scale, w one or one per row."""
    n = w.numbers.shape[0]
    w_scale, w_offset = per_channel(w.scale, n), per_channel(w.offset, n)
    w_sums = w.sum([1]) * w_scale + w_offset * w.numbers.shape[1]
    constant = w_sums * x.offset if bias is None else torch.addcmul(bias, w_sums, x.offset)
    output = arithmetic.gemm(x, w, w_scale * x.scale, constant)
    return output.addcmul_(x.sum([1], keepdim=True), w_offset * x.scale)


def linear_grad_input(arithmetic: Arithmetic, e: Quantized, w: Quantized) -> Tensor:
    """(..., out) x (out, in) -> (..., in); the weight's scale is one, or one per column."""
    turned = Quantized(
        scale=_turn(w.scale), offset=_turn(w.offset), codes=_turn(w.codes), top=w.top
    )
    return linear_output(arithmetic, e, turned, None)


def _turn(x: Tensor | None) -> Tensor:
    assert x is not None
    return x.t() if x.dim() == 2 else x


def linear_grad_weight(arithmetic: Arithmetic, e: Quantized, a: Quantized) -> Tensor:
    """(tokens, out)^T x (tokens, in) -> (out, in); one scale each."""
    x, y = arithmetic.first(e), arithmetic.second(a)
    return product(arithmetic, _columns(x), _columns(y))


def _columns(x: Operand) -> Operand:
    tokens = math.prod(x.numbers.shape[:-1])
    return replace(x, numbers=x.numbers.reshape(tokens, x.numbers.shape[-1]).t())
