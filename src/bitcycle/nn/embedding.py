"""Quantized nn.Embedding and nn.EmbeddingBag: each row (token) of the weight has its own range.

    y_i = w^[x_i]        w^: the weight on its grids

Embeddings are converted only when `only=` names them, because published methods leave them float.
A row is an output channel of a Linear that shares the weight, so a tied decoder reads the same
values. Nothing is multiplied: only the weight is quantized, with a straight-through gradient.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from bitcycle.kernels import make_kernel
from bitcycle.kernels.geometry import LinearGeometry
from bitcycle.nn.control import LEVELS
from bitcycle.nn.layer import OWN_ATTRIBUTES, QuantizedLayer
from bitcycle.nn.loading import OWN_BUFFERS
from bitcycle.nn.plan import make_plan
from bitcycle.nn.rounding import round_straight_through
from bitcycle.nn.settings import LayerSettings
from bitcycle.ops.state import flag_nonfinite


class QuantizedLookup(QuantizedLayer):
    """Mixed in before nn.Embedding and nn.EmbeddingBag; uses the bits of the role weight."""

    num_act_inputs: ClassVar[int] = 0
    own_roles: ClassVar[tuple[str, ...]] = ("weight",)
    multiplies: ClassVar[bool] = False
    weight: Tensor

    @classmethod
    def reason_against(cls, module: nn.Module) -> str | None:
        """Why this embedding cannot be converted; None if it can."""
        if module.sparse:
            return "sparse gradients: the grid is made of the whole weight; use sparse=False"
        if getattr(module, "max_norm", None) is not None:
            return "max_norm rewrites the weight in the forward pass"
        if "weight" not in module._parameters:
            return "its weight is computed (parametrized, or by a hook)"
        if "forward" in module.__dict__:
            return "forward was replaced on this instance"
        taken = [name for name in (*OWN_ATTRIBUTES, *OWN_BUFFERS) if hasattr(module, name)]
        return f"it has an attribute {taken[0]!r} of its own" if taken else None

    @classmethod
    def adapt(cls, settings: LayerSettings) -> LayerSettings:
        """Use no kernel: nothing is multiplied."""
        return replace(settings, kernel=make_kernel("simulate"), kernel_reason="a lookup")

    @property
    def is_active(self) -> bool:
        """Whether the weight has bits."""
        return "weight" in self.quantized_roles

    def quantized_weight(self) -> Tensor:
        """The weight on its grids, one range per row."""
        control, quantizer = self.next_control(), self.settings.quantizer
        weight = self.weight
        if "weight" in self.grid_roles:
            weight = quantizer.prepare("weight", weight, control[LEVELS["weight"]])
        within = quantizer.range_of("weight", weight.detach(), (0,))
        flag_nonfinite(self.health, LEVELS["weight"], *within)
        # blocks as a linear layer has them that shares the weight; nothing is multiplied
        plan = make_plan(quantizer, LinearGeometry(), self.settings.kernel, kinds=self.kinds)
        return round_straight_through(plan, weight, control, within, "weight", self.recorder)


class QuantizedEmbedding(QuantizedLookup, nn.Embedding):
    """A converted nn.Embedding."""

    def forward(self, input: Tensor) -> Tensor:
        """(...) -> (..., dim); without bits exactly nn.Embedding."""
        if not self.is_active:
            return super().forward(input)
        return F.embedding(
            input,
            self.quantized_weight(),
            self.padding_idx,
            scale_grad_by_freq=self.scale_grad_by_freq,
        )


class QuantizedEmbeddingBag(QuantizedLookup, nn.EmbeddingBag):
    """A converted nn.EmbeddingBag; the sum over a bag is float32."""

    def forward(
        self,
        input: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        """(N, L), or (L,) and offsets (N,) -> (N, dim); without bits exactly nn.EmbeddingBag."""
        if not self.is_active:
            return super().forward(input, offsets, per_sample_weights)
        return F.embedding_bag(
            input,
            self.quantized_weight(),
            offsets,
            scale_grad_by_freq=self.scale_grad_by_freq,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=self.padding_idx,
        )


LOOKUPS: dict[type[nn.Module], type[QuantizedLookup]] = {
    nn.Embedding: QuantizedEmbedding,
    nn.EmbeddingBag: QuantizedEmbeddingBag,
}


def is_lookup(module: nn.Module) -> bool:
    """Whether this is an embedding, converted or not; subclasses stay float."""
    return type(module) in LOOKUPS or isinstance(module, QuantizedLookup)
