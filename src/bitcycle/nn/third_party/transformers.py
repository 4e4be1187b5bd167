"""Quantized modules of Hugging Face transformers: Conv1D (GPT-2) and attention.

Attention modules look their attention function up in transformers' registry. A converted module
uses the function registered here, whose two products are quantized.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.pytorch_utils import Conv1D

from bitcycle.kernels.geometry import LinearGeometry
from bitcycle.nn.attention import NUM_RANGES, attend
from bitcycle.nn.class_swap import LAYERS
from bitcycle.nn.layer import QuantizedLayer

_GEOMETRY = LinearGeometry()


@LAYERS.register("transformers.pytorch_utils.Conv1D")
class QuantizedConv1D(QuantizedLayer, Conv1D):
    """A converted `transformers.pytorch_utils.Conv1D`; the weight's range is taken per column."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out); without bits exactly the float module."""
        if not self.quantizes(x, self.weight, self.bias):
            output: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
            return output
        weight = self.weight.t()  # (out, in)
        return self.multiply(_GEOMETRY, x, weight, self.bias)

    def extra_repr(self) -> str:
        """The sizes, and the precision."""
        return f"nf={self.nf}, nx={self.nx}, {super().extra_repr()}"

    __repr__ = nn.Module.__repr__  # Conv1D's own leaves out what is added


NAME = "bitcycle"  # of `attention` in transformers' registry
_CONVERTIBLE = ("sdpa", "eager", None)  # implementations whose masks `attention` reads


class _Config:
    """A model's config with another name of the attention function."""

    _attn_implementation = NAME

    def __init__(self, config: Any) -> None:
        self._config = config

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)


class QuantizedAttention(QuantizedLayer):
    """A converted attention module: q k^T and attention x v; its linear layers are separate."""

    num_act_inputs: ClassVar[int] = NUM_RANGES
    is_between_activations: ClassVar[bool] = True
    own_roles: ClassVar[tuple[str, ...]] = ("act", "error")
    replaced_methods: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def reason_against(cls, module: nn.Module) -> str | None:
        """Attention sinks, and implementations other than eager and sdpa, are not supported."""
        config = module.__dict__.get("config")
        if config is None:
            return "it has no config of its own, in which to choose an attention function"
        if getattr(module, "sinks", None) is not None:
            return "attention sinks are not supported"
        former = config._attn_implementation
        if former not in _CONVERTIBLE:
            return (
                f"attention {former!r}: model.set_attn_implementation('sdpa') first, then convert"
            )
        return None

    @property
    def config(self) -> Any:
        """The config that the float module's forward reads; with bits it names `attention`."""
        config = self.__dict__["config"]
        return _Config(config) if self.is_active else config

    @config.setter
    def config(self, value: Any) -> None:
        self.__dict__["config"] = value


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    softcap: float | None = None,
    position_bias: Tensor | None = None,
    is_causal: bool | None = None,
    s_aux: Tensor | None = None,
    cache: Any = None,
    **others: Any,  # positions and lengths, which eager and sdpa do not read either
) -> tuple[Tensor, Tensor]:
    """transformers' signature: q (N, H, L, d), k and v (N, H / groups, S, d) -> (N, L, H, d)."""
    if not isinstance(module, QuantizedAttention):
        raise ValueError(
            f"attention {NAME!r} is for converted models: {type(module).__name__} is not converted"
        )
    if s_aux is not None or cache is not None:
        what = "attention sinks" if cache is None else "a paged cache"
        raise ValueError(
            f"layer {module.settings.name!r} cannot take {what} at {module.bits_in_force}; leave "
            "it out with skip="
        )
    if attention_mask is None and _is_causal(module, query, is_causal):
        shape = query.shape[2], key.shape[2]
        attention_mask = torch.ones(shape, dtype=torch.bool, device=query.device).tril()
        attention_mask = attention_mask[None, None]
    mask = _additive_mask(attention_mask, query, module.settings.name)
    if position_bias is not None:
        mask = position_bias if mask is None else mask + position_bias
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    output, weights = attend(
        module, query, key, value, mask,
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        dropout=dropout if module.training else 0.0,
        softcap=softcap,
    )  # fmt: skip
    return output.transpose(1, 2).contiguous(), weights


def _is_causal(module: QuantizedAttention, query: Tensor, is_causal: bool | None) -> bool:
    """Whether a missing mask means a causal one, as sdpa has it for more than one query."""
    if module.__dict__["config"]._attn_implementation != "sdpa" or query.shape[2] == 1:
        return False
    return bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)


def _additive_mask(mask: Tensor | None, query: Tensor, name: str) -> Tensor | None:
    """The mask to add to the scores; sdpa's is True where a query attends."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.dim() != 4:
        raise ValueError(
            f"layer {name!r} needs a mask (N, 1 or H, L, S); "
            "model.set_attn_implementation('sdpa') makes such masks"
        )
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, -torch.inf)


AttentionInterface.register(NAME, attention)


@cache
def find_layer(kind: type) -> type[QuantizedAttention] | None:
    """`QuantizedAttention` for a type whose forward looks its attention function up."""
    forward = inspect.unwrap(kind.__dict__.get("forward", find_layer))
    names = getattr(getattr(forward, "__code__", None), "co_names", ())
    return QuantizedAttention if "ALL_ATTENTION_FUNCTIONS" in names else None
