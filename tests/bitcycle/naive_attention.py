"""The oracle of attention layers: float attention whose operands and errors sit on naive grids.

Autograd differentiates it; the rounding of an operand passes gradients on unchanged, and the error
of a product is put on its grid (nearest) before both of its backward products.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.bitcycle import naive


class _Operand(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bits: int, is_weight: bool) -> Tensor:
        return naive.per_channel(x, bits) if is_weight else naive.per_tensor(x, bits)

    @staticmethod
    def backward(ctx: Any, e: Tensor) -> tuple[Tensor, None, None]:
        return e, None, None


class _Result(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, bits: int) -> Tensor:
        ctx.bits = bits
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, e: Tensor) -> tuple[Tensor, None]:
        return naive.per_tensor(e, ctx.bits), None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, bits: int) -> Tensor:
    """x w^T + bias, the weight on a grid per row."""
    x, weight = _Operand.apply(x, bits, False), _Operand.apply(weight, bits, True)
    output = _Result.apply(torch.einsum("...i,oi->...o", x, weight), bits)
    return output if bias is None else output + bias


def matmul(a: Tensor, b: Tensor, bits: int) -> Tensor:
    """a b of two activations."""
    return _Result.apply(_Operand.apply(a, bits, False) @ _Operand.apply(b, bits, False), bits)


def attention(
    q: Tensor, k: Tensor, v: Tensor, is_hidden: Tensor | None, scale: float, bits: int
) -> tuple[Tensor, Tensor]:
    """softmax(scale q k^T) v, and the attention weights; scores (N, H, L, S) may be hidden."""
    scores = matmul(q, k.transpose(-1, -2), bits) * scale
    if is_hidden is not None:
        scores = scores.masked_fill(is_hidden, -1e30)
    weights = torch.softmax(scores, -1)
    return matmul(weights, v, bits), weights


def multihead(
    layer: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bits: int,
    is_hidden: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Of batches (N, length, features): the output and the weights of every head."""
    if layer.in_proj_weight is not None:
        weights = layer.in_proj_weight.chunk(3)
    else:
        weights = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
    biases = (None,) * 3 if layer.in_proj_bias is None else layer.in_proj_bias.chunk(3)
    inputs = (query, key, value)
    q, k, v = (
        linear(x, w, b, bits) for x, w, b in zip(inputs, weights, biases, strict=True)
    )  # fmt: skip
    num = len(q)
    if layer.bias_k is not None:
        k = torch.cat([k, layer.bias_k.repeat(num, 1, 1)], 1)
        v = torch.cat([v, layer.bias_v.repeat(num, 1, 1)], 1)
    if layer.add_zero_attn:
        k, v = (torch.cat([x, torch.zeros_like(x[:, :1])], 1) for x in (k, v))
    if is_hidden is not None:
        more = k.shape[1] - is_hidden.shape[-1]  # appended rows are seen
        is_hidden = torch.cat([is_hidden, is_hidden.new_zeros(*is_hidden.shape[:-1], more)], -1)
    q, k, v = (x.unflatten(-1, (layer.num_heads, -1)).transpose(1, 2) for x in (q, k, v))
    mixed, shares = attention(q, k, v, is_hidden, layer.head_dim**-0.5, bits)
    mixed = mixed.transpose(1, 2).flatten(2)
    return linear(mixed, layer.out_proj.weight, layer.out_proj.bias, bits), shares
