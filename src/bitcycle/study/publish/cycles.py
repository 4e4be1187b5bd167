"""What a configuration's bits do: whether they cycle, how often, up to which bits."""

from __future__ import annotations

from typing import Any

from bitcycle.precision import PARENTS, cost_bits
from bitcycle.schedules import Delay, Schedule, parse_schedule
from bitcycle.schedules.cyclic import Cyclic
from bitcycle.study.identity import ROLES
from bitcycle.study.publish.settings import to_settings
from bitcycle.train.config import RunConfig


def is_cyclic(config: RunConfig) -> bool:
    """Whether any role's bits go up and down, from the start or later.

    >>> from bitcycle.recipes import recipe
    >>> [is_cyclic(recipe(f"digits-{name}")) for name in ("cpt-3-8-8", "static-8-8", "float32")]
    [True, False, False]
    """
    return num_cycles(config) is not None


def is_plain(config: RunConfig) -> bool:
    """Whether it is CPT's own schedule: cosine cycles of the forward bits from the first step.

    >>> from bitcycle.recipes import recipe
    >>> names = ("cpt-3-8-8", "triangle-3-8-8", "gradcycle-6-6-8", "static-8-8")
    >>> [is_plain(recipe(f"cifar100-resnet74-{name}")) for name in names]
    [True, False, False, False]
    """
    given = config.precision.given()
    if set(given) != {"forward", "backward"} or config.precision.auto_high is not None:
        return False
    schedules = _schedules(config)
    if set(schedules) != {"forward ", "backward "}:  # patterns of layers
        return False
    forward, backward = schedules["forward "], schedules["backward "]
    does_cycle = str(forward).startswith("CR:") and _cycles(forward, config.steps) > 0
    return does_cycle and backward.low == backward.high


def num_cycles(config: RunConfig) -> int | None:
    """The most that any role has; None where no bits go up and down.

    >>> from bitcycle.recipes import recipe
    >>> names = ("digits-cpt-3-8-8", "cifar100-resnet74-cpt-3-8-8", "digits-static-8-8")
    >>> [num_cycles(recipe(name)) for name in names]
    [8, 32, None]
    """
    found = (_cycles(schedule, config.steps) for schedule in _schedules(config).values())
    return max(found, default=0) or None


def reached(config: RunConfig) -> tuple[int, int, int] | None:
    """(upper end, highest, last) of the forward bits over the run; None for layers apart.

    >>> from bitcycle.recipes import recipe
    >>> reached(recipe("digits-rr-3-8-8")), reached(recipe("digits-cpt-3-8-8"))
    ((8, 7, 7), (8, 8, 8))
    """
    forward = _schedules(config).get("forward ")
    if forward is None or config.steps is None:
        return None
    bits = [cost_bits(forward(step, config.steps)) for step in range(config.steps)]
    return cost_bits(forward.high), max(bits), bits[-1]


def tops(config: RunConfig) -> dict[str, int]:
    """Of weights, activations, errors and gradients, whether given or inherited."""
    given = config.precision.given(auto=1)
    tops: dict[str, int] = {}
    for role, parent in PARENTS.items():
        texts: dict[str, Any] = {}  # by pattern of layers; "" is every layer
        for text in (given[parent], given.get(role, {})):
            texts |= text if isinstance(text, dict) else {"": text}
        tops |= {f"{role} {k}": cost_bits(parse_schedule(text).high) for k, text in texts.items()}
    return tops


def is_alike(config: RunConfig, static: RunConfig) -> bool:
    """But for the bits: model, data, length, quantizer, layers; float32 has no last two."""
    own, other = _rest(config), _rest(static)
    if static.precision.is_float:
        own["precision"] = other["precision"] = None
    return own == other


def _cycles(schedule: Schedule, steps: int | None) -> int:
    """How many there are; 0 for bits that do not go up and down."""
    if isinstance(schedule, Cyclic):
        return schedule.cycles if schedule.low != schedule.high else 0
    if isinstance(schedule, Delay) and _is_the_end(schedule.start, steps):
        return 0
    return sum(_cycles(part, steps) for part in schedule.parts())


def _is_the_end(start: int | float, steps: int | None) -> bool:
    """Whether a start, a share of the run or a step of it, is never reached."""
    return start == 1.0 if isinstance(start, float) else steps is not None and start >= steps


def _schedules(config: RunConfig) -> dict[str, Schedule]:
    """Of every role that is given, and of every pattern of layers in it."""
    found: dict[str, Schedule] = {}
    for role, value in config.precision.given(auto=1).items():
        for pattern, text in (value if isinstance(value, dict) else {"": value}).items():
            found[f"{role} {pattern}"] = parse_schedule(text)
    return found


def _rest(config: RunConfig) -> dict[str, Any]:
    """Every setting but the name, the bits and how they were found."""
    settings = to_settings(config)
    settings.pop("range_test", None)
    precision = {k: v for k, v in settings.get("precision", {}).items() if k not in ROLES}
    return {**settings, "name": None, "precision": precision}
