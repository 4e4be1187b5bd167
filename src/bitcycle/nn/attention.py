"""Scaled dot-product attention with both of its products on a layer's grids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitcycle.kernels.geometry import LinearGeometry, MatMulGeometry
from bitcycle.nn.activations import masked_dropout
from bitcycle.nn.class_swap import LAYERS
from bitcycle.nn.layer import QuantizedLayer
from bitcycle.nn.product import differentiable_once, multiply_again, product_behind

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
        weights = masked_dropout(weights, dropout)
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


_LINEAR = LinearGeometry()
_ATTENTION = 3  # rows of act_range: query, key, value; then those of the attention; then its output
_OUTPUT = _ATTENTION + NUM_RANGES


@LAYERS.register("torch.nn.modules.activation.MultiheadAttention")
class QuantizedMultiheadAttention(QuantizedLayer, nn.MultiheadAttention):
    """A converted nn.MultiheadAttention: its projections, q k^T and attention x v; softmax float32.

    Query, key and value are projected one by one, packed weights or not, so that each projection
    has ranges of its own. `out_proj` is a module, but only its parameters are read, as in the float
    layer: its product belongs to this layer.
    """

    num_act_inputs: ClassVar[int] = _OUTPUT + 1

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As the float layer; without bits exactly it."""
        if not self.is_active:
            return super().forward(
                query, key, value, key_padding_mask, need_weights, attn_mask,
                average_attn_weights, is_causal,
            )  # fmt: skip
        if any(x.is_nested for x in (query, key, value)):
            raise ValueError(
                f"layer {self.settings.name!r} has no range for a nested tensor at {self.precision}"
                "; pass a padded one and key_padding_mask"
            )
        if is_causal and attn_mask is None:
            raise ValueError("is_causal is a hint about attn_mask: pass that mask too")
        F._mha_shape_check(  # type: ignore[attr-defined]
            query, key, value, key_padding_mask, attn_mask, self.num_heads
        )
        is_batched = query.dim() == 3
        mask = self._mask(query, attn_mask, key_padding_mask)
        batch_dim = 0 if self.batch_first and is_batched else 1
        if not is_batched:
            query, key, value = _each(lambda x: x.unsqueeze(batch_dim), query, key, value)
        if batch_dim == 1:
            query, key, value = _each(lambda x: x.transpose(0, 1), query, key, value)
        if is_causal and key_padding_mask is None and not need_weights:
            mask = self._causal_mask(query, key)
        output, weights = self._forward_on_grids(query, key, value, mask)  # (N, L, E)
        output = output.transpose(0, 1) if batch_dim == 1 else output
        if average_attn_weights:
            weights = weights.mean(1)
        if not is_batched:
            output, weights = output.squeeze(batch_dim), weights.squeeze(0)
        return output, weights if need_weights else None

    def _forward_on_grids(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (
            self._project(x, weight, bias, row)
            for row, (x, weight, bias) in enumerate(
                zip((query, key, value), self._in_weights(), biases, strict=True)
            )
        )
        num = q.shape[0]
        if self.bias_k is not None and self.bias_v is not None:
            k = torch.cat([k, self.bias_k.expand(num, -1, -1)], dim=1)
            v = torch.cat([v, self.bias_v.expand(num, -1, -1)], dim=1)
        if self.add_zero_attn:
            k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
        if mask is not None:
            mask = F.pad(mask, (0, k.shape[1] - mask.shape[-1]))  # the rows just added are seen
        heads = (self.num_heads, self.head_dim)
        q, k, v = (x.reshape(*x.shape[:2], *heads).transpose(1, 2) for x in (q, k, v))
        mixed, weights = attend(
            self, q, k, v, mask,
            scale=self.head_dim**-0.5,
            dropout=self.dropout if self.training else 0.0,
            act_row=_ATTENTION,
        )  # fmt: skip
        mixed = mixed.transpose(1, 2).flatten(2)  # (N, H, L, d) -> (N, L, E)
        out = self.out_proj
        return self._project(mixed, out.weight, out.bias, _OUTPUT), weights

    def _project(self, x: Tensor, weight: Tensor, bias: Tensor | None, row: int) -> Tensor:
        return self.multiply(
            _LINEAR, x, weight, bias, second_keep=(0,), input_keep=(1,), act_row=row
        )

    def _in_weights(self) -> tuple[Tensor, ...]:
        if self._qkv_same_embed_dim:
            return self.in_proj_weight.chunk(3)
        return self.q_proj_weight, self.k_proj_weight, self.v_proj_weight

    def _causal_mask(self, query: Tensor, key: Tensor) -> Tensor:
        """What the hint means to the float layer: rows appended to the keys are hidden as well."""
        num_keys = key.shape[1] + (self.bias_k is not None) + self.add_zero_attn
        mask = torch.full((query.shape[1], num_keys), -torch.inf, dtype=query.dtype)
        return mask.triu(1).to(query.device)[None, None]

    def _mask(
        self, query: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None
    ) -> Tensor | None:
        """Both masks as one that is added to the scores: (N or 1, H or 1, L or 1, S)."""
        padding = F._canonical_mask(
            mask=key_padding_mask,
            mask_name="key_padding_mask",
            other_type=F._none_or_dtype(attn_mask),
            other_name="attn_mask",
            target_type=query.dtype,
        )
        mask = F._canonical_mask(
            mask=attn_mask,
            mask_name="attn_mask",
            other_type=None,
            other_name="",
            target_type=query.dtype,
            check_other=False,
        )
        if mask is not None:  # (L, S), or (N H, L, S)
            mask = mask.view(-1, 1 if mask.dim() == 2 else self.num_heads, *mask.shape[-2:])
        if padding is None:
            return mask
        padding = padding.view(-1, 1, 1, padding.shape[-1])
        return padding if mask is None else mask + padding


def _each(function: Callable[[Tensor], Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
    """Of each input; one result for one tensor, so that its codes are made once."""
    results = {id(x): function(x) for x in inputs}
    return tuple(results[id(x)] for x in inputs)
