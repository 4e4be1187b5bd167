"""Scaled dot-product attention with both of its products on a layer's grids."""

from __future__ import annotations

import torch
from torch import Tensor

from bitcycle.kernels.geometry import MatMulGeometry
from bitcycle.nn.base import QuantizedLayer
from bitcycle.nn.dropout import drop

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
    """
    scores = layer.multiply(_GEOMETRY, q, k.transpose(-1, -2), second="act", act_row=act_row)
    scores = scores * scale  # (N, H, L, S)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores + mask
    wide = torch.promote_types(scores.dtype, torch.float32)
    weights: Tensor = torch.ops.aten._safe_softmax(scores, -1, dtype=wide).to(v.dtype)
    if dropout > 0.0:
        weights = drop(weights, dropout)
    output = layer.multiply(_GEOMETRY, weights, v, second="act", act_row=act_row + 2)
    return output, weights
