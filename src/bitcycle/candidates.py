"""Which modules of a model multiply, and why one of them cannot be converted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from bitcycle.matmul import MatMul
from bitcycle.nn.base import OWN_ATTRIBUTES, OWN_BUFFERS, QuantizedLayer
from bitcycle.nn.embedding import QuantizedLookup
from bitcycle.nn.norm import QuantizedNorm
from bitcycle.nn.swap import converted_type, qualified_name, registered_base
from bitcycle.patterns import Named, named_modules
from bitcycle.quantizers.base import Quantizer
from bitcycle.wrappers import is_sharded

# Types that multiply, beside those a layer is registered for: the audit lists them all.
_MULTIPLYING = (
    nn.Linear, nn.modules.conv._ConvNd, nn.Bilinear, nn.RNNBase, nn.RNNCellBase,
    nn.MultiheadAttention, MatMul,
)  # fmt: skip
# The same by name, since nobody has imported their packages; why they stay float until a layer is
# registered for them.
_MULTIPLYING_NAMES = {
    "torch_geometric.nn.conv.message_passing.MessagePassing": (
        "aggregates in float32: no quantized layer for its type"
    ),
}


@dataclass
class Candidate(Named):
    """A module that multiplies, and why it cannot be converted (None: it can)."""

    reason: str | None = None


def find_candidates(model: nn.Module) -> list[Candidate]:
    """Every module of the model that multiplies."""
    candidates = [
        Candidate(e.module, e.names, e.parents, _reason_against(e))
        for e in named_modules(model)
        if _multiplies(e.module)
    ]
    # what such a layer reads the parameters of is part of it: its out_proj
    whole = {
        id(c.module)
        for c in candidates
        if c.reason is None and isinstance(c.module, nn.MultiheadAttention)
    }
    return [c for c in candidates if not any(id(parent) in whole for parent in c.parents)]


def find_ends(candidates: list[Candidate]) -> list[Candidate]:
    """The first and the last layer with parameters: what `first_last="float32"` leaves float."""
    ids = {id(c.module) for c in candidates}
    outer = [
        c
        for c in candidates
        if not any(id(parent) in ids for parent in c.parents)
        and next(c.module.parameters(), None) is not None
    ]
    return [outer[0], *outer[1:][-1:]] if outer else []


def keeps_aggregation(rules: Quantizer, module: nn.Module) -> bool:
    """Whether this module sums along edges, and these rules leave that float32 (FP-Agg)."""
    if rules.aggregation == "quantized":
        return False
    if isinstance(module, QuantizedLayer):
        return module.aggregates
    return registered_base(type(module)) is not None and converted_type(type(module)).aggregates


def is_within(entry: Named, others: Iterable[Named]) -> bool:
    """Whether the module is one of these, or part of one."""
    modules = (entry.module, *entry.parents)
    return any(other.module is module for other in others for module in modules)


def _multiplies(module: nn.Module) -> bool:
    kind = type(module)
    if isinstance(module, (QuantizedNorm, QuantizedLookup)):
        return False
    return (
        isinstance(module, (QuantizedLayer, *_MULTIPLYING))
        or registered_base(kind) is not None
        or any(qualified_name(base) in _MULTIPLYING_NAMES for base in kind.__mro__)
        or (isinstance(module, torch.jit.ScriptModule) and _scripted_name(module) in _SCRIPTED)
    )


_SCRIPTED = {"Linear", *(f"Conv{t}{d}d" for t in ("", "Transpose") for d in (1, 2, 3))}


def _scripted_name(module: torch.jit.ScriptModule) -> str:
    return str(getattr(module, "original_name", ""))


def _reason_against(entry: Named) -> str | None:
    """Why this module stays float, in words for the audit; None when nothing is in the way."""
    module, kind = entry.module, type(entry.module)
    if isinstance(module, QuantizedLayer):
        return None
    if isinstance(module, torch.jit.ScriptModule):
        return "scripted: convert before torch.jit.script"
    if any(is_sharded(parameter) for parameter in module._parameters.values()):
        return "sharded (fully_shard): convert first, then shard"
    if any(isinstance(parent, nn.MultiheadAttention) for parent in entry.parents):
        return "inside nn.MultiheadAttention, which reads its weight and never calls it"
    base = registered_base(kind)
    if base is None:
        named = (_MULTIPLYING_NAMES.get(qualified_name(other)) for other in kind.__mro__)
        return next(filter(None, named), f"no quantized layer for {kind.__name__}")
    if any(
        parameter is not None and is_lazy(parameter) for parameter in module._parameters.values()
    ):
        return "lazy: run one batch through the model first"
    if parametrize.is_parametrized(module):
        return "parametrized: its weight is computed (weight_norm, spectral_norm, ...)"
    if hasattr(module, "weight") and "weight" not in module._parameters:
        return "its weight is computed by a hook (weight_norm, spectral_norm, pruning)"
    replaced = converted_type(base).replaced_methods
    changed = [name for name in replaced if getattr(kind, name) is not getattr(base, name)]
    if changed:
        return f"{kind.__name__} overrides {changed[0]}"
    changed = [name for name in replaced if name in module.__dict__]
    if changed:
        return f"{changed[0]} was replaced on this instance"
    against = converted_type(base).reason_against(module)
    if against:
        return against
    taken = [name for name in (*OWN_ATTRIBUTES, *OWN_BUFFERS) if hasattr(module, name)]
    if taken:
        return f"it has an attribute {taken[0]!r} of its own, which conversion would overwrite"
    return None
