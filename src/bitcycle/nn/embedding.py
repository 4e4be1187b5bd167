"""Embeddings whose weight is on a grid: converted only by name, since published rules leave them.

    y_i = w^[x_i]        w^: every row (token) on a grid of its own range

A row is an output channel of the Linear that may share the weight, so a tied decoder reads the
very same values. Nothing is multiplied: there is no activation or error to quantize, and the
gradient passes the rounding straight through.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from bitcycle.kernels import make_kernel
from bitcycle.kernels.geometry import LinearGeometry
from bitcycle.nn.layer import OWN_ATTRIBUTES, OWN_BUFFERS, LayerSettings, QuantizedLayer
from bitcycle.nn.product import LEVELS, Plan, on_grid, watch


class QuantizedLookup(QuantizedLayer):
    """Mixed in before nn.Embedding and nn.EmbeddingBag: the bits of the role weight apply."""

    num_act_inputs: ClassVar[int] = 0
    weight: Tensor

    @classmethod
    def reason_against(cls, module: nn.Module) -> str | None:
        """Why this embedding cannot be converted; None: it can."""
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
        """There is no product for a kernel."""
        return replace(settings, kernel=make_kernel("simulate"), kernel_reason="a lookup")

    @property
    def is_active(self) -> bool:
        """Whether the weight has bits."""
        return "weight" in self.quantized_roles

    def quantized_weight(self) -> Tensor:
        """The weight on its grids, a range per row."""
        control, quantizer = self._tick(), self.settings.quantizer
        weight = quantizer.prepare("weight", self.weight, control[LEVELS["weight"]])
        within = quantizer.range_of("weight", weight.detach(), (0,))
        watch(self.health, "weight", within)
        plan = Plan(
            quantizer=quantizer,
            kernel=self.settings.kernel,
            geometry=LinearGeometry(),  # not read: nothing is handed to the kernel
            roles=self.quantized_roles,
            recorder=self.recorder,
        )
        return on_grid(plan, weight, control, within, "weight")

    def __reduce_ex__(self, protocol: Any) -> Any:
        _, _, state = super().__reduce_ex__(protocol)
        return _rebuild, (type(self),), state


class QuantizedEmbedding(QuantizedLookup, nn.Embedding):
    """A converted nn.Embedding."""

    float_type = nn.Embedding

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

    float_type = nn.EmbeddingBag

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
    """Whether this is an embedding, converted or not; subclasses have forwards of their own."""
    return type(module) in LOOKUPS or isinstance(module, QuantizedLookup)


def _rebuild(kind: type[QuantizedLookup]) -> QuantizedLookup:
    """Unpickles: a layer is made by class swap, never by its constructor."""
    return kind.__new__(kind)
