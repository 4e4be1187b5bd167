"""Scaled dot-product attention with both of its products on a layer's grids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bitcycle.kernels.geometry import MatMulGeometry
from bitcycle.nn.base import QuantizedLayer
from bitcycle.nn.dropout import drop
from bitcycle.nn.once import differentiable_once
from bitcycle.nn.product import multiply_again, product_behind

NUM_RANGES = 4  # q, k, the attention weights, v

_GEOMETRY = MatMulGeometry()


def attend(
    layer: QuantizedLayer,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *,
    scale: float,
    dropout: float = 0.0,
    softcap: float | None = None,
    act_row: int = 0,
) -> tuple[Tensor, Tensor]:
    """softmax(scale q k^T + mask) v, and the attention weights; the softmax stays float32.

    q (N, H, L, d), k and v (N, H, S, d); mask: what is added to the (N, H, L, S) scores. softcap c:
    scores become c tanh(scores / c). A query that may look at nothing gets zeros, as in
    `F.scaled_dot_product_attention`, and not NaN, which would spoil the range of all. Takes the
    layer's ranges from `act_row` on.

    Where q and k are kept as codes, the attention weights are not kept for the backward pass: they
    are computed again from the codes, to the bit.
    """
    scores = layer.multiply(_GEOMETRY, q, k.transpose(-1, -2), second="act", act_row=act_row)
    softmax = _Softmax(scale, softcap, v.dtype)
    can_repeat = not torch.compiler.is_compiling() and product_behind(scores) is not None
    weigh: Callable[..., Tensor] = _forgetful(softmax) if can_repeat else softmax
    weights = weigh(scores, mask)
    if dropout > 0.0:
        weights = drop(weights, dropout)
    output = layer.multiply(_GEOMETRY, weights, v, second="act", act_row=act_row + 2)
    return output, weights


@dataclass(frozen=True)
class _Softmax:
    """From the product q k^T (N, H, L, S) to the attention weights."""

    scale: float
    softcap: float | None
    dtype: torch.dtype

    def __call__(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        scores = scores * self.scale
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if mask is not None:
            scores = scores + mask
        wide = torch.promote_types(scores.dtype, torch.float32)
        weights: Tensor = torch.ops.aten._safe_softmax(scores, -1, dtype=wide)
        return weights.to(self.dtype)


def _forgetful(softmax: _Softmax) -> Callable[..., Tensor]:
    return lambda scores, mask: _Forgotten.apply(scores, mask, softmax)  # type: ignore[no-untyped-call]


class _Forgotten(torch.autograd.Function):
    """`_Softmax` that keeps nothing of its input and output: backward makes them again."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, mask: Tensor | None, softmax: _Softmax) -> Tensor:
        ctx.product, ctx.softmax = product_behind(scores), softmax
        ctx.save_for_backward(mask)
        return softmax(scores, mask)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (mask,) = ctx.saved_tensors
        scores = multiply_again(ctx.product).requires_grad_()
        if mask is not None:
            mask = mask.detach().requires_grad_(ctx.needs_input_grad[1])
        with torch.enable_grad():
            weights = ctx.softmax(scores, mask)
        wanted = (scores, mask) if ctx.needs_input_grad[1] else (scores,)
        grads = torch.autograd.grad(weights, wanted, grad)
        return grads[0], grads[1] if len(grads) > 1 else None, None
