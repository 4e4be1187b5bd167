"""Float models into quantized ones and back, in place, by class swap.

Same Parameters, so optimizers built earlier, tied weights and hooks stay valid; full precision
until told otherwise, and then bit-identical to the float model.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from bitcycle.candidates import Candidate, find_candidates, find_ends, is_within, keeps_aggregation
from bitcycle.kernels import Kernel, ask_kernel, make_kernel
from bitcycle.kernels.base import PRODUCTS
from bitcycle.kernels.choice import MAX_CODE_BITS
from bitcycle.nn.base import QuantizedLayer
from bitcycle.nn.companion import Companion, accompany, can_accompany
from bitcycle.nn.embedding import LOOKUPS, QuantizedLookup, is_lookup
from bitcycle.nn.norm import QuantizedNorm, can_normalize, convert_norm
from bitcycle.nn.settings import LayerSettings, ModelState, alone
from bitcycle.nn.swap import converted_type
from bitcycle.patterns import (
    Named,
    Pattern,
    check_patterns,
    list_names,
    matches,
    named_modules,
    names,
    unwrap,
)
from bitcycle.precision import Precision, check_bits
from bitcycle.quantizers.base import Quantizer, make_quantizer
from bitcycle.wrappers import (
    disable_fast_paths,
    enable_fast_paths,
    ignore_in_ddp,
    is_fsdp,
    own_buffers,
    refuse_sharded,
)


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
    """Convert every layer there is a quantized one for, in place; returns the same model.

    skip, only: names (with everything below), globs over full dotted paths, or module types. What
    they leave over includes nn.ReLUs, which then keep one bit per element for the backward pass,
    and BatchNorms if the quantizer has a rule for them. Quantizers with first_last="float32" leave
    the first and the last layer float. Embeddings stay float unless `only` names them themselves,
    by a name, a glob or a type; converted, their weight follows its bits.
    kernel: "auto", or the name of one for all layers. max_bits: exceeding it later is an error.
    seed: of the stochastic rounding. Layers converted earlier take the new settings and keep
    their bits and ranges.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> model = quantize_model(model, skip=["2"])
    >>> [type(module).__name__ for module in model]
    ['QuantizedLinear', 'MaskedReLU', 'Linear']
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"quantize_model takes an nn.Module, got {type(model).__name__}")
    rules = make_quantizer(quantizer)
    check_bits(max_bits, "max_bits")
    device = next((parameter.device for parameter in model.parameters()), None)
    multiplier, kernel_reason = _ask_kernel(kernel, rules, device)
    refuse_sharded(model)
    candidates = find_candidates(model)
    modules = named_modules(model)
    companions = [entry for entry in modules if can_accompany(entry.module)]
    norms = [entry for entry in modules if _is_norm_for(rules, entry.module)]
    lookups = [entry for entry in modules if is_lookup(entry.module)]
    others = [*companions, *norms, *lookups]
    skipped = check_patterns(skip, candidates, "skip", also=others)
    wanted = None if only is None else check_patterns(only, candidates, "only", also=others)

    def is_meant(entry: Named) -> bool:
        return not any(matches(pattern, entry) for pattern in skipped) and (
            wanted is None or any(matches(pattern, entry) for pattern in wanted)
        )

    meant = [c for c in candidates if c.reason is None and is_meant(c)]
    ends = find_ends(candidates) if rules.first_last == "float32" else []

    def is_kept_float(candidate: Candidate) -> bool:
        return is_within(candidate, ends) or keeps_aggregation(rules, candidate.module)

    chosen = [c for c in meant if not is_kept_float(c)]
    chosen += _chosen_lookups(filter(is_meant, lookups), wanted or ())
    if not chosen:
        raise ValueError(f"nothing to convert: {_explain(candidates, rules, meant)}")
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
    for candidate in meant:
        if is_kept_float(candidate) and isinstance(candidate.module, QuantizedLayer):
            candidate.module.become_float()  # converted before, by rules that did not keep it
    for entry in filter(is_meant, norms):
        named = replace(settings, name=entry.name)
        convert_norm(entry.module, rules.norm_rule, named, shared)
    for entry in filter(is_meant, companions):
        accompany(entry.module, shared)
    disable_fast_paths(model)
    ignore_in_ddp(model)
    return model


def _chosen_lookups(lookups: Iterable[Named], wanted: tuple[Pattern, ...]) -> list[Candidate]:
    """Embeddings that a pattern is about, and those converted before."""
    chosen = []
    for entry in lookups:
        if not isinstance(entry.module, QuantizedLookup):
            if not any(names(pattern, entry) for pattern in wanted):
                continue
            if reason := LOOKUPS[type(entry.module)].reason_against(entry.module):
                raise ValueError(f"only: {entry.name!r} cannot be converted: {reason}")
        chosen.append(Candidate(entry.module, entry.names, entry.parents))
    return chosen


def _convert(
    module: nn.Module, settings: LayerSettings, shared: ModelState, device: torch.device | None
) -> None:
    if isinstance(module, QuantizedLayer):
        old = module.settings.name  # keep the fuller path: parts may be converted before the whole
        name = settings.name if settings.name.endswith(old) else old
        precision = module.precision
        module.set_precision(Precision())
        module.settings, module.shared = module.adapt(replace(settings, name=name)), shared
        module.set_precision(precision)
        return
    module.__class__ = LOOKUPS.get(type(module)) or converted_type(type(module))
    assert isinstance(module, QuantizedLayer)
    module.become_quantized(settings, shared)
    if device is not None and next(module.parameters(), None) is None:
        module.to(device)  # a MatMul has no parameter that tells where the model is


def _ask_kernel(name: str, rules: Quantizer, device: torch.device | None) -> tuple[Kernel, str]:
    kernel, reason = ask_kernel(
        name,
        weight_grids=rules.weight_grids,
        device_type="cpu" if device is None else device.type,
    )
    if rules.integer_range(MAX_CODE_BITS) is not None:
        notes = [] if name == "auto" else _float_products(kernel, rules)
        return kernel, "; ".join([reason, *notes])
    why = f"{type(rules).__name__} has no integer codes"
    if name == "auto":
        return make_kernel("simulate"), f"auto: {why}"
    return kernel, f"{reason}; multiplies floats: {why}" if kernel.takes_codes else reason


def _float_products(kernel: Kernel, rules: Quantizer) -> list[str]:
    """Which products of a kernel that multiplies codes these rules leave to float32, and why."""
    parts = kernel.name.split("/")
    by_product = dict(zip(PRODUCTS, parts if len(parts) > 1 else parts * 3, strict=True))
    tensor, rules = torch.zeros(2, 2), alone(rules)
    multiplying = {p for p, part in by_product.items() if part in ("int8", "bf16")}
    if rules.range_of("error", tensor)[0].numel() > 1:
        left = [p for p in ("grad_input", "grad_weight") if p in multiplying]
        return [f"{' and '.join(left)} in float32: one scale per sample"] if left else []
    notes = []
    by_channel = rules.range_of("weight", tensor, (0,))[0].numel() > 1 and rules.weight_grids == 1
    if by_channel and by_product["grad_input"] == "int8":
        notes.append("grad_input in float32 where the weight has a scale per output channel")
    if rules.grad_weight_bits(MAX_CODE_BITS) != MAX_CODE_BITS and "grad_weight" in multiplying:
        notes.append("grad_weight in float32: it reads an error of its own")
    return notes


def _is_norm_for(rules: Quantizer, module: nn.Module) -> bool:
    """Whether the rules normalize by a rule of their own here, or earlier ones did."""
    if rules.norm_rule is None:
        return isinstance(module, QuantizedNorm)
    return can_normalize(module)


def _explain(candidates: list[Candidate], rules: Quantizer, kept: list[Candidate]) -> str:
    kind = type(rules).__name__
    if kept and all(keeps_aggregation(rules, c.module) for c in kept):
        return (
            f"{kind} leaves sums along edges float32 and there is no other layer to convert; "
            f"{kind}(aggregation='quantized') converts them. Layers: {list_names(kept)}"
        )
    if kept:
        return (
            f"{kind} leaves the first and the last layer float32 and there is no other to convert; "
            f"{kind}(first_last='quantized') converts them too. Layers: {list_names(candidates)}"
        )
    if not candidates:
        return "the model has no layer that multiplies (nn.Linear, convolutions, bitcycle.MatMul)"
    names: dict[str, list[str]] = {}
    for c in candidates:
        if c.reason:
            names.setdefault(c.reason, []).append(c.name or "(the model itself)")
    if names:
        shown = [f"{', '.join(group[:10])} ({reason})" for reason, group in names.items()]
        return f"every layer is excluded or stays float: {'; '.join(shown)}"
    return f"skip and only leave no layer; layers: {list_names(candidates)}"


def unquantize_model(model: nn.Module) -> nn.Module:
    """The exact inverse of `quantize_model`, in place; ranges and bits are forgotten.

    >>> model = unquantize_model(quantize_model(nn.Linear(2, 2)))
    >>> type(model).__name__, sorted(model.state_dict())
    ('Linear', ['bias', 'weight'])
    """
    kinds = (QuantizedLayer, Companion)
    layers = [module for module in model.modules() if isinstance(module, kinds)]
    if not layers:
        raise ValueError("the model has no quantized layer: nothing to convert back")
    if any(is_fsdp(module) for module in model.modules()):
        raise ValueError(
            "the model was given to fully_shard, which owns its classes now: build the model anew, "
            "convert it, load the whole state (torch.distributed.checkpoint.state_dict, "
            "full_state_dict=True) and convert that one back"
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
    enable_fast_paths(model)
    return model


def float_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The state of the unwrapped model with a float model's keys: loads there with strict=True.

    >>> sorted(float_state_dict(quantize_model(nn.Linear(2, 2))))
    ['bias', 'weight']
    """
    model = unwrap(model)
    state: dict[str, Tensor] = model.state_dict()  # with the version numbers of the modules
    for key, _ in own_buffers(model):
        state.pop(key, None)
    return state
