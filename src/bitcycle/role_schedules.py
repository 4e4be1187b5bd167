"""The schedule of each role of each layer, from what was given for the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bitcycle.nn.base import QuantizedLayer
from bitcycle.patterns import Named, Pattern, check_mapping, last_match
from bitcycle.precision import PARENTS, ROLES, Precision, is_float
from bitcycle.schedules import Schedule, ScheduleLike, parse_schedule


class _Inherit:
    def __repr__(self) -> str:
        return "INHERIT"


INHERIT: Final = _Inherit()  # weight and act take `forward`, error and grad take `backward`
RoleSchedule = ScheduleLike | Mapping[Pattern, ScheduleLike] | _Inherit

Plan = tuple[Schedule, ...]  # of one layer, in the order of ROLES


def role_schedules(
    layers: list[tuple[Named, QuantizedLayer]], given: Mapping[str, RoleSchedule], total_steps: int
) -> list[Plan]:
    """The schedule of each role of each layer, from the six keywords of a `PrecisionScheduler`.

    Checked: every keyword has an effect, every layer can take the bits of `total_steps` steps.
    """
    if all(isinstance(value, _Inherit) for value in given.values()):
        raise ValueError(
            "no role was given a schedule: pass forward=, backward=, weight=, act=, error= or "
            "grad= (forward='fp32' schedules float32)"
        )
    parsed = {key: _parse(value, layers, key) for key, value in given.items()}
    _check_use(layers, parsed)
    plans = [_plan(entry, parsed) for entry, _ in layers]
    for (entry, layer), plan in zip(layers, plans, strict=True):
        _check_rules(layer, plan, {r for r in ROLES if last_match(parsed[r], entry) is not None})
    _check_limits([layer for _, layer in layers], plans, total_steps)
    return plans


def _parse(
    value: RoleSchedule, layers: list[tuple[Named, QuantizedLayer]], key: str
) -> dict[Pattern, Schedule]:
    if isinstance(value, _Inherit):
        return {}
    if isinstance(value, Mapping):
        check_mapping(value, [entry for entry, _ in layers], key)
        return {pattern: parse_schedule(inner) for pattern, inner in value.items()}
    return {"*": parse_schedule(value)}


def _plan(entry: Named, parsed: Mapping[str, Mapping[Pattern, Schedule]]) -> Plan:
    """The schedule of each role of a layer."""
    float32 = parse_schedule("fp32")
    return tuple(
        last_match(parsed[role], entry) or last_match(parsed[PARENTS[role]], entry) or float32
        for role in ROLES
    )


def _check_use(
    layers: list[tuple[Named, QuantizedLayer]], parsed: Mapping[str, Mapping[Pattern, Schedule]]
) -> None:
    """`forward` and `backward` must reach some layer that its two roles leave to them."""
    for parent in ("forward", "backward"):
        roles = [role for role in ROLES if PARENTS[role] == parent]
        if parsed[parent] and all(
            last_match(parsed[role], entry) is not None for entry, _ in layers for role in roles
        ):
            raise ValueError(
                f"{parent}= has no effect: {' and '.join(f'{role}=' for role in roles)} cover "
                f"every layer; drop {parent}= or one of them"
            )


def _check_rules(layer: QuantizedLayer, plan: Plan, named: set[str]) -> None:
    """A role that was named for a layer without a rule for it is an error."""
    quantizer = layer.settings.quantizer
    for role, schedule in zip(ROLES, plan, strict=True):
        if role in named and role not in quantizer.roles and not is_float(schedule.low):
            raise ValueError(
                f"{role}={schedule} has no effect: {type(quantizer).__name__} (layer "
                f"{layer.settings.name!r}) has no rule for {role}, only for "
                f"{', '.join(r for r in ROLES if r in quantizer.roles)}; drop {role}= or "
                "choose a quantizer that has one (bitcycle ls quantizers)"
            )


def _check_limits(layers: list[QuantizedLayer], plans: list[Plan], total_steps: int) -> None:
    """Bits that will exceed a layer's max_bits, or its kernel's, at some step are an error now."""
    limited = [
        (layer, p) for layer, p in zip(layers, plans, strict=True) if layer.settings.is_limited
    ]
    bits_of = {s: s.bit_widths(total_steps) for s in {s for _, plan in limited for s in plan}}
    for layer, plan in limited:
        for role, schedule in zip(ROLES, plan, strict=True):
            for bits in bits_of[schedule]:
                layer.check_precision(Precision(**{role: bits}))
