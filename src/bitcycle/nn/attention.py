"""Quantized scaled dot-product attention, and nn.MultiheadAttention built on it.

Both products of attention, q k^T and attention x v, are quantized; the softmax stays float32.
"""

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
from bitcycle.nn.product import product_node, recompute_output
from bitcycle.nn.rounding import differentiable_once

NUM_RANGES = 4  # of `attend`: q, k, the attention weights, v
_ATTENTION_ROW = 3  # of act_range in MultiheadAttention, after query, key and value
_OUTPUT_ROW = _ATTENTION_ROW + NUM_RANGES

_LINEAR, _MATMUL = LinearGeometry(), MatMulGeometry()


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
    scores become c tanh(scores / c). A query without any key gets zeros, as in
    `F.scaled_dot_product_attention`; a NaN would reach the range of the whole tensor. act_row: the
    first of its rows in the layer's `act_range`.

    Where q and k are saved as codes, the attention weights are not saved for backward. They are
    recomputed from the codes, bit for bit.
    """
    scores = layer.multiply(_MATMUL, q, k.transpose(-1, -2), act_row=act_row)
    softmax = _Softmax(scale, softcap, v.dtype)
    can_recompute = not torch.compiler.is_compiling() and product_node(scores) is not None
    if can_recompute:
        weights: Tensor = _RecomputedSoftmax.apply(scores, mask, softmax)  # type: ignore[no-untyped-call]
    else:
        weights = softmax(scores, mask)
    if dropout > 0.0:
        weights = masked_dropout(weights, dropout)
    output = layer.multiply(_MATMUL, weights, v, act_row=act_row + 2)
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


class _RecomputedSoftmax(torch.autograd.Function):
    """`_Softmax` that saves neither its input nor its output: backward recomputes them."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, mask: Tensor | None, softmax: _Softmax) -> Tensor:
        ctx.product, ctx.softmax = product_node(scores), softmax
        ctx.save_for_backward(mask)
        return softmax(scores, mask)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (mask,) = ctx.saved_tensors
        scores = recompute_output(ctx.product).requires_grad_()
        if mask is not None:
            mask = mask.detach().requires_grad_(ctx.needs_input_grad[1])
        with torch.enable_grad():
            weights = ctx.softmax(scores, mask)
        wanted = (scores, mask) if ctx.needs_input_grad[1] else (scores,)
        grads = torch.autograd.grad(weights, wanted, grad)
        return grads[0], grads[1] if len(grads) > 1 else None, None


@LAYERS.register("torch.nn.modules.activation.MultiheadAttention")
class QuantizedMultiheadAttention(QuantizedLayer, nn.MultiheadAttention):
    """A converted nn.MultiheadAttention: its four projections, q k^T and attention x v.

    Query, key and value are projected separately, also with packed weights, so that each projection
    has its own ranges. `out_proj` is a module of which only the parameters are read, as in the
    float layer: its product belongs to this layer.
    """

    num_act_inputs: ClassVar[int] = _OUTPUT_ROW + 1

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
        """The float layer's arguments and results; without bits exactly the float layer."""
        mask = attn_mask if attn_mask is not None and attn_mask.is_floating_point() else None
        if not self.quantizes(query, key, value, self.out_proj.weight, self.out_proj.bias, mask):
            return super().forward(
                query, key, value, key_padding_mask, need_weights, attn_mask,
                average_attn_weights, is_causal,
            )  # fmt: skip
        if any(x.is_nested for x in (query, key, value)):
            raise ValueError(
                f"layer {self.settings.name!r} has no range for a nested tensor at "
                f"{self.bits_in_force}; pass a padded tensor and key_padding_mask"
            )
        if is_causal and attn_mask is None:
            raise ValueError("is_causal is only a hint about attn_mask; pass attn_mask too")
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
        output, weights = self._quantized_forward(query, key, value, mask)  # (N, L, E)
        output = output.transpose(0, 1) if batch_dim == 1 else output
        if average_attn_weights:
            weights = weights.mean(1)
        if not is_batched:
            output, weights = output.squeeze(batch_dim), weights.squeeze(0)
        return output, weights if need_weights else None

    def _quantized_forward(
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
            mask = F.pad(mask, (0, k.shape[1] - mask.shape[-1]))  # added rows are visible
        heads = (self.num_heads, self.head_dim)
        q, k, v = (x.reshape(*x.shape[:2], *heads).transpose(1, 2) for x in (q, k, v))
        mixed, weights = attend(
            self, q, k, v, mask,
            scale=self.head_dim**-0.5,
            dropout=self.dropout if self.training else 0.0,
            act_row=_ATTENTION_ROW,
        )  # fmt: skip
        mixed = mixed.transpose(1, 2).flatten(2)  # (N, H, L, d) -> (N, L, E)
        out = self.out_proj
        return self._project(mixed, out.weight, out.bias, _OUTPUT_ROW), weights

    def _project(self, x: Tensor, weight: Tensor, bias: Tensor | None, row: int) -> Tensor:
        return self.multiply(_LINEAR, x, weight, bias, act_row=row)

    def _in_weights(self) -> tuple[Tensor, ...]:
        if self._qkv_same_embed_dim:
            return self.in_proj_weight.chunk(3)
        return self.q_proj_weight, self.k_proj_weight, self.v_proj_weight

    def _causal_mask(self, query: Tensor, key: Tensor) -> Tensor:
        """The mask that is_causal means to the float layer; it hides appended keys as well."""
        num_keys = key.shape[1] + (self.bias_k is not None) + self.add_zero_attn
        mask = torch.full((query.shape[1], num_keys), -torch.inf, dtype=query.dtype)
        return mask.triu(1).to(query.device)[None, None]

    def _mask(
        self, query: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None
    ) -> Tensor | None:
        """Both masks as one to add to the scores: (N or 1, H or 1, L or 1, S)."""
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
    """Apply a function to each input, once per tensor, so that its codes are computed once."""
    results = {id(x): function(x) for x in inputs}
    return tuple(results[id(x)] for x in inputs)


# -- the fast paths of nn.TransformerEncoder ------------------------------------------------------


def disable_fast_paths(model: nn.Module) -> None:
    """Make nn.TransformerEncoderLayer call its layers in evaluation: its fast path skips them."""
    for module in model.modules():
        if not any(isinstance(child, QuantizedLayer) for child in module.modules()):
            continue
        if isinstance(module, nn.TransformerEncoderLayer) and module.activation_relu_or_gelu:
            module._float_fast_path = module.activation_relu_or_gelu  # type: ignore[assignment]
            module.activation_relu_or_gelu = 0
        if isinstance(module, nn.TransformerEncoder) and getattr(
            module, "use_nested_tensor", False
        ):
            module._float_fast_path = True  # type: ignore[assignment]
            module.use_nested_tensor = False


def enable_fast_paths(model: nn.Module) -> None:
    """Undo `disable_fast_paths`."""
    for module in model.modules():
        saved = module.__dict__.pop("_float_fast_path", None)
        if saved is None:
            continue
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = saved
        elif isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = saved
