"""Which schedule each role of each layer has, from the keywords of a `PrecisionScheduler`.

weight, act    their own keyword, else `forward`      a keyword takes a schedule, or a dict of
error, grad    their own keyword, else `backward`     patterns of layers, the last match wins
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from bitcycle.bits import Bits, PlainBits, order
from bitcycle.nn.layer import QuantizedLayer
from bitcycle.patterns import NamedModule, Pattern, check_mapping, last_match
from bitcycle.precision import (
    FORWARD_OPERANDS,
    PARENTS,
    ROLES,
    BackwardOperands,
    Precision,
    check_backward_operands,
    refuse_grid,
)
from bitcycle.schedules import Schedule, ScheduleLike, Static, parse_schedule
from bitcycle.schedules.base import BACKWARD_BITS, default_backward


class _Inherit:
    def __repr__(self) -> str:
        return "INHERIT"


INHERIT: Final = _Inherit()  # weight and act take `forward`, error and grad take `backward`
RoleSchedule = ScheduleLike | Mapping[Pattern, ScheduleLike] | _Inherit  # what a keyword takes
RoleSchedules = tuple[Schedule, ...]  # of one layer, in the order of ROLES


def resolve_schedules(
    layers: list[tuple[NamedModule, QuantizedLayer]],
    by_keyword: Mapping[str, RoleSchedule],
    total_steps: int,
    backward_operands: BackwardOperands = "forward",
) -> list[RoleSchedules]:
    """The schedule of each role of each layer, from the six keywords of a `PrecisionScheduler`.

    Where backward is not given, `default_backward` chooses it from the layer's forward schedules.
    Raises a ValueError if a keyword has no effect, or if a layer cannot have the bits of some step.
    """
    check_backward_operands(backward_operands)
    if all(isinstance(value, _Inherit) for value in by_keyword.values()):
        raise ValueError(
            "no role has a schedule: pass forward=, backward=, weight=, act=, error= or grad="
        )
    parsed = {keyword: _parse(value, layers, keyword) for keyword, value in by_keyword.items()}
    parsed = {  # of a function the bits of all steps
        keyword: {pattern: schedule.over(total_steps) for pattern, schedule in each.items()}
        for keyword, each in parsed.items()
    }
    _check_use(layers, parsed)
    float32 = parse_schedule("fp32")
    resolved: list[RoleSchedules] = []
    for entry, layer in layers:
        own = {role: last_match(parsed[role], entry) for role in ROLES}
        given = {role: _given(parsed, role, entry) for role in ROLES}
        weight, act = given["weight"] or float32, given["act"] or float32
        default = _default_schedule(layer, weight, act, given)
        schedules = (weight, act, given["error"] or default, given["grad"] or default)
        _check_rules(layer, schedules, {role for role in ROLES if own[role] is not None})
        resolved.append(schedules)
    if backward_operands == "backward":
        for operands in dict.fromkeys(resolved):
            refuse_grids(operands, total_steps)
    _check_limits([layer for _, layer in layers], resolved, total_steps)
    return resolved


def refuse_grids(schedules: RoleSchedules, total_steps: int) -> None:
    """Raise if an operand has an integer grid at some step: see `refuse_grid`."""
    for role, schedule in zip(ROLES, schedules, strict=True):
        if role in (*FORWARD_OPERANDS, "error"):
            for bits in schedule.bit_widths(total_steps):
                refuse_grid(f"{role}={schedule}", bits)


def _default_schedule(
    layer: QuantizedLayer, weight: Schedule, act: Schedule, given: Mapping[str, Schedule | None]
) -> Schedule:
    """The schedule of error and grad on a layer where it is not given."""
    rules = layer.settings.quantizer.roles
    try:
        return Static(default_backward(weight, act))
    except ValueError:
        if any(role in rules and given[role] is None for role in ("error", "grad")):
            raise
        return parse_schedule("fp32")  # nothing is rounded there


def describe_keywords(
    layers: list[tuple[NamedModule, QuantizedLayer]],
    by_keyword: Mapping[str, RoleSchedule],
    resolved: list[RoleSchedules],
) -> str:
    """The keywords as given, and where backward is not: 'forward=4, backward=8 by default'."""
    parsed = {keyword: _parse(value, layers, keyword) for keyword, value in by_keyword.items()}
    words = [
        f"{keyword}={_in_short(schedules)}" for keyword, schedules in parsed.items() if schedules
    ]
    defaults = [
        str(schedule)
        for (entry, layer), by_role in zip(layers, resolved, strict=True)
        for role, schedule in zip(ROLES, by_role, strict=True)
        if PARENTS[role] == "backward"
        and role in layer.settings.quantizer.roles
        and _given(parsed, role, entry) is None
    ]
    if defaults:
        which = "backward=" if not parsed["backward"] else "on other layers "
        words.append(f"{which}{' / '.join(dict.fromkeys(defaults))} by default")
    return ", ".join(words)


def _in_short(schedules: Mapping[Pattern, Schedule]) -> str:
    if list(schedules) == ["*"]:
        return str(schedules["*"])
    named = [f"{_pattern_text(pattern)}: {schedule}" for pattern, schedule in schedules.items()]
    return f"{{{', '.join(named)}}}"


def _pattern_text(pattern: Pattern) -> str:
    return pattern if isinstance(pattern, str) else pattern.__name__


def find_logged(
    layers: list[tuple[NamedModule, QuantizedLayer]],
    by_keyword: Mapping[str, RoleSchedule],
    rounded: Collection[str],
) -> dict[str, list[tuple[int, str]]]:
    """The keys of `metrics`: the (layer, role) pairs of each pass, keyword and pattern."""
    found: dict[str, list[tuple[int, str]]] = {}
    for keyword in ("forward", "backward"):
        own = [role for role in ROLES if PARENTS[role] == keyword]
        roles = [role for role in own if role in rounded] or own
        found[f"bits/{keyword}"] = [(n, role) for n in range(len(layers)) for role in roles]
    parsed = {keyword: _parse(value, layers, keyword) for keyword, value in by_keyword.items()}
    for number, (entry, _) in enumerate(layers):
        for role in (role for role in ROLES if role in rounded):
            for keyword in (role, PARENTS[role]):
                patterns = {pattern: pattern for pattern in parsed[keyword]}
                if (pattern := last_match(patterns, entry)) is None:
                    continue
                by_pattern = "" if list(patterns) == ["*"] else f"/{_pattern_text(pattern)}"
                if by_pattern or keyword == role:  # the means of a pass are there already
                    found.setdefault(f"bits/{keyword}{by_pattern}", []).append((number, role))
                break
    return found


def _given(
    parsed: Mapping[str, Mapping[Pattern, Schedule]], role: str, entry: NamedModule
) -> Schedule | None:
    """The schedule of a role on a layer; None if no keyword gives it one."""
    return last_match(parsed[role], entry) or last_match(parsed[PARENTS[role]], entry)


def _parse(
    value: RoleSchedule, layers: list[tuple[NamedModule, QuantizedLayer]], keyword: str
) -> dict[Pattern, Schedule]:
    if isinstance(value, _Inherit):
        return {}
    if isinstance(value, Mapping):
        check_mapping(value, [entry for entry, _ in layers], keyword)
        return {pattern: parse_schedule(inner) for pattern, inner in value.items()}
    return {"*": parse_schedule(value)}


def _check_use(
    layers: list[tuple[NamedModule, QuantizedLayer]],
    parsed: Mapping[str, Mapping[Pattern, Schedule]],
) -> None:
    """Raise if `forward` or `backward` reaches no layer, because its two roles cover all."""
    for parent in ("forward", "backward"):
        roles = [role for role in ROLES if PARENTS[role] == parent]
        if parsed[parent] and all(
            last_match(parsed[role], entry) is not None for entry, _ in layers for role in roles
        ):
            raise ValueError(
                f"{parent}= has no effect: {' and '.join(f'{role}=' for role in roles)} cover "
                "every layer"
            )


def _check_rules(layer: QuantizedLayer, schedules: RoleSchedules, named: set[str]) -> None:
    """Raise if a role has a schedule of its own and the layer's quantizer does not round it."""
    quantizer = layer.settings.quantizer
    for role, schedule in zip(ROLES, schedules, strict=True):
        if role in named and role not in quantizer.roles and not Bits.of(schedule.low).is_float32:
            raise ValueError(
                f"{role}={schedule} has no effect: {type(quantizer).__name__} (layer "
                f"{layer.settings.name!r}) does not quantize {role}, only "
                f"{', '.join(r for r in ROLES if r in quantizer.roles)}"
            )


def _check_limits(
    layers: list[QuantizedLayer], resolved: list[RoleSchedules], total_steps: int
) -> None:
    """Raise if a layer cannot have the bits of some step.

    Bits are limited by `max_bits` and by a chosen kernel, formats by the quantizer.
    """
    distinct = dict.fromkeys(schedule for own in resolved for schedule in own)
    bits_of = {
        schedule: sorted(schedule.bit_widths(total_steps), key=order) for schedule in distinct
    }
    for layer, own in zip(layers, resolved, strict=True):
        _check_formats(layer, {r: bits_of[s] for r, s in zip(ROLES, own, strict=True)})
        for role, schedule in zip(ROLES, own, strict=True):
            for bits in bits_of[schedule]:
                if not (layer.settings.is_limited or Bits.of(bits).is_format):
                    continue
                try:
                    layer.check_precision(Precision().replace(**{role: bits}))
                except ValueError as error:
                    if role not in ("error", "grad") or Bits.of(bits).is_format:
                        raise
                    raise ValueError(
                        f"{error} (backward is {BACKWARD_BITS} bits unless it is given)"
                    ) from None


def _check_formats(layer: QuantizedLayer, by_role: Mapping[str, Iterable[PlainBits]]) -> None:
    """Raise if no quantizer could round to all formats of a layer."""
    quantizer = layer.settings.quantizer
    rounded = [bits for role, each in by_role.items() if role in quantizer.roles for bits in each]
    kinds = {Bits.of(bits).kind for bits in rounded if Bits.of(bits).is_format}
    if not kinds <= quantizer.kinds:
        quantizer_for(rounded)


def quantizer_for(bits: Iterable[PlainBits]) -> str:
    """The name of the quantizer that rounds to all of these: that of a format's kind, or "sbm".

    >>> from bitcycle.formats.catalogue import FORMATS
    >>> quantizer_for([FORMATS["mxfp4"], FORMATS["bf16"], 8]), quantizer_for([8, None])
    ('mx', 'sbm')
    """
    others = (None, "integer", "float")  # every quantizer takes them
    by_kind = {b.kind: str(b) for b in map(Bits.of, bits) if b.kind not in others}
    if len(by_kind) > 1:
        raise ValueError(
            f"no quantizer rounds to {' and '.join(by_kind.values())}: they need the quantizers "
            f"{' and '.join(map(repr, by_kind))}"
        )
    return next(iter(by_kind), None) or "sbm"
