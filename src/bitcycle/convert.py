"""Convert a float model to a quantized one and back, in place.

Conversion swaps classes (`nn.class_swap`) and keeps the same Parameters: optimizers, tied weights
and hooks stay valid. A converted model starts at full precision, bit-identical to the float model.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from bitcycle.kernels import Kernel, make_kernel, requested_kernel
from bitcycle.kernels.choice import MAX_CODE_BITS
from bitcycle.matmul import MatMul
from bitcycle.nn.activations import MaskedModule, can_convert_activation, convert_activation
from bitcycle.nn.attention import disable_fast_paths, enable_fast_paths
from bitcycle.nn.class_swap import layer_class, qualified_name, registered_base, swap_class
from bitcycle.nn.embedding import LOOKUPS, QuantizedLookup, is_lookup
from bitcycle.nn.layer import OWN_ATTRIBUTES, QuantizedLayer
from bitcycle.nn.loading import OWN_BUFFERS
from bitcycle.nn.norm import QuantizedNorm, can_convert_norm, convert_norm
from bitcycle.nn.settings import LayerSettings, ModelState, float_products
from bitcycle.parallel import (
    ignore_in_ddp,
    is_fsdp,
    is_sharded,
    own_buffers,
    refuse_sharded,
)
from bitcycle.patterns import (
    NamedModule,
    Pattern,
    check_patterns,
    is_named_by,
    list_names,
    matches,
    named_modules,
    unwrap,
)
from bitcycle.precision import Precision, check_max_bits
from bitcycle.quantizers.base import Quantizer, make_quantizer
from bitcycle.quantizers.blocks import BlockQuantizer
from bitcycle.tables import THE_MODEL

_LOG = logging.getLogger("bitcycle")

# Types that multiply, besides those with a registered layer; the audit lists all of them.
_MULTIPLYING = (
    nn.Linear, nn.modules.conv._ConvNd, nn.Bilinear, nn.RNNBase, nn.RNNCellBase,
    nn.MultiheadAttention, MatMul,
)  # fmt: skip
# The same by name, without importing their packages; and why they stay float without a registered
# layer.
_MULTIPLYING_NAMES = {
    "torch_geometric.nn.conv.message_passing.MessagePassing": (
        "aggregates in float32: no quantized layer for its type"
    ),
}
# Types that multiply, by the names of scripted modules.
_SCRIPTED = {"Linear", *(f"Conv{t}{d}d" for t in ("", "Transpose") for d in (1, 2, 3))}

_PEFT_WRAPPER = re.compile(r"\.(base_layer|modules_to_save\.[^.]+)(?=\.)")


def quantize_model(
    model: nn.Module,
    quantizer: str | Quantizer = "sbm",
    *,
    skip: Iterable[Pattern] = (),
    only: Iterable[Pattern] | None = None,
    kernel: str = "auto",
    max_bits: int | None = None,
    seed: int = 0,
) -> nn.Module:
    """Convert every layer that has a quantized version, in place; returns the same model.

    Converts linear, convolutional, recurrent and attention layers. nn.ReLU and nn.Dropout then save
    one bit per element for the backward pass. BatchNorms are converted if the quantizer has a rule
    for them. Embeddings stay float unless `only` names them. Quantizers with first_last="float32"
    leave the first and the last layer float. Layers converted earlier take the new settings and
    keep their bits and ranges.

    skip, only: names (with everything below), globs over full dotted paths, or module types.
    kernel: "auto", or the name of one kernel for all layers.
    max_bits: the most bits that layers will take; more is an error.
    seed: of the stochastic rounding.

    Logs how many modules were converted (`logging.getLogger("bitcycle")`, level INFO); `bc.audit`
    lists them.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> model = quantize_model(model, skip=["2"])
    >>> [type(module).__name__ for module in model]
    ['QuantizedLinear', 'MaskedReLU', 'Linear']
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"quantize_model takes an nn.Module, got {type(model).__name__}")
    rules = make_quantizer(quantizer)
    check_max_bits(max_bits)
    device = next((parameter.device for parameter in model.parameters()), None)
    multiplier, kernel_reason = _choose_kernel(kernel, rules, device)
    refuse_sharded(model)
    candidates = find_candidates(model)
    modules = named_modules(model)
    activations = [entry for entry in modules if can_convert_activation(entry.module)]
    norms = [entry for entry in modules if _is_norm_for(rules, entry.module)]
    embeddings = [entry for entry in modules if is_lookup(entry.module)]
    others = [*activations, *norms, *embeddings]
    skipped = check_patterns(skip, candidates, "skip", also=others)
    included = None if only is None else check_patterns(only, candidates, "only", also=others)

    def is_selected(entry: NamedModule) -> bool:
        return not any(matches(pattern, entry) for pattern in skipped) and (
            included is None or any(matches(pattern, entry) for pattern in included)
        )

    selected = [c for c in candidates if c.reason is None and is_selected(c)]
    ends = find_ends(candidates) if rules.first_last == "float32" else []

    def is_kept_float(candidate: Candidate) -> bool:
        return is_within(candidate, ends) or keeps_aggregation(rules, candidate.module)

    chosen = [c for c in selected if not is_kept_float(c)]
    chosen += _select_embeddings(filter(is_selected, embeddings), included or ())
    if not chosen:
        raise ValueError(f"nothing to convert: {_explain(candidates, rules, selected)}")
    shared = next(
        (e.module.shared for e in modules if isinstance(e.module, QuantizedLayer)), ModelState()
    )
    settings = LayerSettings(
        name="",
        quantizer=rules,
        kernel=multiplier,
        kernel_reason=kernel_reason,
        max_bits=max_bits,
        seed=seed,
    )
    for candidate in chosen:  # check everything before anything is written
        if isinstance(candidate.module, QuantizedLayer):
            replace(settings, name=candidate.name).check(candidate.module.precision)
    for candidate in chosen:
        _convert(candidate.module, replace(settings, name=candidate.name), shared, device)
    for candidate in selected:
        if is_kept_float(candidate) and isinstance(candidate.module, QuantizedLayer):
            candidate.module.become_float()  # converted earlier, by another quantizer
    for entry in filter(is_selected, norms):
        convert_norm(entry.module, rules.norm_rule, replace(settings, name=entry.name), shared)
    for entry in filter(is_selected, activations):
        convert_activation(entry.module, shared)
    disable_fast_paths(model)
    ignore_in_ddp(model)
    _ignore_ranges_on_save(model)
    _LOG.info(_summarize(candidates))
    return model


def _summarize(candidates: list[Candidate]) -> str:
    """How many of these modules are converted."""
    num_converted = sum(isinstance(c.module, QuantizedLayer) for c in candidates)
    num_left = len(candidates) - num_converted
    text = f"{num_converted} of {len(candidates)} modules that multiply are converted"
    return f"{text}, {num_left} left float32" if num_left else text


def _select_embeddings(
    embeddings: Iterable[NamedModule], included: tuple[Pattern, ...]
) -> list[Candidate]:
    """Embeddings that a pattern names, and those converted earlier."""
    chosen = []
    for entry in embeddings:
        if not isinstance(entry.module, QuantizedLookup):
            if not any(is_named_by(pattern, entry) for pattern in included):
                continue
            if reason := LOOKUPS[type(entry.module)].reason_against(entry.module):
                raise ValueError(f"only: {entry.name!r} cannot be converted: {reason}")
        chosen.append(Candidate(entry.module, entry.names, entry.parents))
    return chosen


def _convert(
    module: nn.Module, settings: LayerSettings, shared: ModelState, device: torch.device | None
) -> None:
    if isinstance(module, QuantizedLayer):
        old = module.settings.name  # keep the longer path: a part may be converted before the whole
        name = settings.name if settings.name.endswith(old) else old
        precision = module.precision
        module.set_precision(Precision())
        module.change_settings(module.adapt(replace(settings, name=name)))
        module.shared = shared
        module.set_precision(precision)
        return
    swap_class(module, LOOKUPS.get(type(module)) or layer_class(type(module)))
    assert isinstance(module, QuantizedLayer)
    module.become_quantized(settings, shared)
    if device is not None and next(module.parameters(), None) is None:
        module.to(device)  # a MatMul has no parameter to read the device from


def _choose_kernel(name: str, rules: Quantizer, device: torch.device | None) -> tuple[Kernel, str]:
    kernel, reason = requested_kernel(
        name,
        device_type="cpu" if device is None else device.type,
    )
    if rules.integer_range(MAX_CODE_BITS) is not None:
        notes = [] if name == "auto" else float_products(kernel, rules)
        return kernel, "; ".join([reason, *notes])
    why = f"{type(rules).__name__} has no integer codes"
    if isinstance(rules, BlockQuantizer) and (name == "auto" or kernel.takes_scaled):
        return kernel, reason  # tensor cores may multiply its formats
    if name == "auto":
        return make_kernel("simulate"), f"auto: {why}"
    return kernel, f"{reason}; multiplies floats: {why}" if kernel.takes_codes else reason


def _is_norm_for(rules: Quantizer, module: nn.Module) -> bool:
    """Whether the quantizer has a rule for this BatchNorm, or an earlier one had."""
    if rules.norm_rule is None:
        return isinstance(module, QuantizedNorm)
    return can_convert_norm(module)


def _explain(candidates: list[Candidate], rules: Quantizer, kept: list[Candidate]) -> str:
    kind = type(rules).__name__
    if kept and all(keeps_aggregation(rules, c.module) for c in kept):
        return (
            f"{kind} leaves sums along edges float32 ({kind}(aggregation='quantized') does not): "
            f"{list_names(kept)}"
        )
    if kept:
        return (
            f"{kind} leaves the first and the last layer float32 ({kind}(first_last='quantized') "
            f"does not): {list_names(candidates)}"
        )
    if not candidates:
        return "the model has no layer that multiplies (nn.Linear, convolutions, bitcycle.MatMul)"
    names: dict[str, list[str]] = {}
    for c in candidates:
        if c.reason:
            names.setdefault(c.reason, []).append(c.name or THE_MODEL)
    if names:
        shown = [f"{', '.join(group[:10])} ({reason})" for reason, group in names.items()]
        return f"every layer is excluded or stays float: {'; '.join(shown)}"
    return f"skip and only leave no layer; layers: {list_names(candidates)}"


def unquantize_model(model: nn.Module) -> nn.Module:
    """Undo `quantize_model`, in place; bits and observed ranges are lost.

    >>> model = unquantize_model(quantize_model(nn.Linear(2, 2)))
    >>> type(model).__name__, sorted(model.state_dict())
    ('Linear', ['bias', 'weight'])
    """
    kinds = (QuantizedLayer, MaskedModule)
    layers = [module for module in model.modules() if isinstance(module, kinds)]
    if not layers:
        raise ValueError("the model has no quantized layer: nothing to convert back")
    if any(is_fsdp(module) for module in model.modules()):
        raise ValueError(
            "the model was passed to fully_shard, which replaced its classes: load its full state "
            "into a new model, and convert that one back"
        )
    inner = unwrap(model)
    own = {key for key, _ in own_buffers(inner)}
    ignored = getattr(inner, "_ddp_params_and_buffers_to_ignore", [])
    others = [key for key in ignored if key.removeprefix("_orig_mod.") not in own]
    for layer in layers:
        layer.become_float()
    if others:
        inner._ddp_params_and_buffers_to_ignore = others  # type: ignore[assignment]
    else:
        inner.__dict__.pop("_ddp_params_and_buffers_to_ignore", None)
    _ignore_ranges_on_save(model)
    enable_fast_paths(model)
    return model


def float_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The unwrapped model's state dict with a float model's keys, for strict=True.

    >>> sorted(float_state_dict(quantize_model(nn.Linear(2, 2))))
    ['bias', 'weight']
    """
    model = unwrap(model)
    state: dict[str, Tensor] = model.state_dict()  # with the version numbers of the modules
    for key, _ in own_buffers(model):
        state.pop(key, None)
    return state


def _ignore_ranges_on_save(model: nn.Module) -> None:
    """Let `save_pretrained` of transformers write a float model's keys, which it reads back."""
    for module in model.modules():
        if not hasattr(type(module), "_keys_to_ignore_on_save"):
            continue
        keys = [key for key, is_saved in own_buffers(module) if is_saved]
        keys += [_PEFT_WRAPPER.sub("", key) for key in keys]  # after PEFT has merged its adapters
        given = module._keys_to_ignore_on_save or ()
        others = {key for key in given if key.rpartition(".")[2] not in OWN_BUFFERS}  # type: ignore[union-attr]
        module._keys_to_ignore_on_save = others.union(keys)  # type: ignore[assignment]


# -- what can be converted ------------------------------------------------------------------------


@dataclass
class Candidate(NamedModule):
    """A module that multiplies, and why it cannot be converted (None if it can)."""

    reason: str | None = None


def find_candidates(model: nn.Module) -> list[Candidate]:
    """Every module of the model that multiplies."""
    candidates = [
        Candidate(e.module, e.names, e.parents, _reason_against(e))
        for e in named_modules(model)
        if _multiplies(e.module)
    ]
    # a converted MultiheadAttention reads the parameters of its out_proj: part of that layer
    whole = {
        id(c.module)
        for c in candidates
        if c.reason is None and isinstance(c.module, nn.MultiheadAttention)
    }
    return [c for c in candidates if not any(id(parent) in whole for parent in c.parents)]


def find_ends(candidates: list[Candidate]) -> list[Candidate]:
    """The first and the last layer with parameters, which `first_last="float32"` leaves float."""
    ids = {id(c.module) for c in candidates}
    outer = [
        c
        for c in candidates
        if not any(id(parent) in ids for parent in c.parents)
        and next(c.module.parameters(), None) is not None
    ]
    return [outer[0], *outer[1:][-1:]] if outer else []


def keeps_aggregation(rules: Quantizer, module: nn.Module) -> bool:
    """Whether this module sums along edges and the quantizer leaves that float32 (FP-Agg)."""
    if rules.aggregation == "quantized":
        return False
    if isinstance(module, QuantizedLayer):
        return module.aggregates
    return registered_base(type(module)) is not None and layer_class(type(module)).aggregates


def is_within(entry: NamedModule, others: Iterable[NamedModule]) -> bool:
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


def _scripted_name(module: torch.jit.ScriptModule) -> str:
    return str(getattr(module, "original_name", ""))


def _reason_against(entry: NamedModule) -> str | None:
    """Why this module cannot be converted, for the audit; None if it can."""
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
    replaced = layer_class(base).replaced_methods
    changed = [name for name in replaced if getattr(kind, name) is not getattr(base, name)]
    if changed:
        return f"{kind.__name__} overrides {changed[0]}"
    changed = [name for name in replaced if name in module.__dict__]
    if changed:
        return f"{changed[0]} was replaced on this instance"
    against = layer_class(base).reason_against(module)
    if against:
        return against
    taken = [name for name in (*OWN_ATTRIBUTES, *OWN_BUFFERS) if hasattr(module, name)]
    if taken:
        return f"it has an attribute {taken[0]!r} of its own, which conversion would overwrite"
    return None
