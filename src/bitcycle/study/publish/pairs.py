"""Cyclic bits against static ones at the same top: the comparison that the method is about."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bitcycle.precision import PARENTS, cost_bits
from bitcycle.schedules import Delay, Schedule, parse_schedule
from bitcycle.schedules.cyclic import Cyclic
from bitcycle.study.identity import ROLES
from bitcycle.study.numbers import share_text
from bitcycle.study.publish.settings import to_settings
from bitcycle.study.statistics import Difference, paired_difference, settled
from bitcycle.study.summary import GroupSummary, Row
from bitcycle.train.config import RunConfig

HIGHER, LOWER, NOISE, UNKNOWN = "higher", "lower", "within noise", "cannot tell"
_ROUNDING = 1e-9  # of a cost or a mean: equal but for float arithmetic


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A cyclic method and a static one, over common seeds.

    cost: BitOPs of the cyclic one, the static one's = 1.
    """

    group: GroupSummary
    cyclic: Row
    static: Row
    difference: Difference
    cost: float

    @property
    def verdict(self) -> str:
        """By rule: where the interval leaves out 0, on which side; else within noise."""
        beyond = self.difference.is_beyond_noise
        if beyond is None:
            return UNKNOWN
        return NOISE if not beyond else HIGHER if self.difference.mean > 0 else LOWER

    @property
    def is_better(self) -> bool | None:
        """None within noise, and where there is no interval."""
        if self.verdict in (NOISE, UNKNOWN):
            return None
        return (self.verdict == HIGHER) == self.group.higher_is_better

    @property
    def is_cheaper(self) -> bool:
        """Whether it took fewer BitOPs."""
        return settled(self.cost) < 1

    @property
    def is_dearer(self) -> bool:
        """Whether it took more."""
        return settled(self.cost) > 1

    @property
    def side(self) -> int:
        """Whom the difference favours, noise or not: 1 the cycle, -1 static bits; 0 is equal."""
        assert self.static.summary is not None
        change = self.difference.mean
        if math.isclose(change, 0, abs_tol=_ROUNDING * abs(self.static.summary.mean)):
            return 0
        return 1 if (change > 0) == self.group.higher_is_better else -1

    def words(self) -> str:
        """The verdict, with what it means."""
        if self.verdict == UNKNOWN:
            return f"{UNKNOWN}: {self._why_unknown()}"
        return self.verdict if self.is_better is None else (
            f"{self.verdict} ({'better' if self.is_better else 'worse'})"
        )  # fmt: skip

    def _why_unknown(self) -> str:
        if not math.isfinite(self.difference.mean):
            return "a value is not finite"
        return "one seed" if self.difference.n == 1 else "the same in every seed"

    def loss_allowed(self) -> float | None:
        """How much worse, in the metric, the interval still allows; 0 where it allows none."""
        low, high = self.difference.low, self.difference.high
        if low is None or high is None:
            return None
        return max(0.0, -low if self.group.higher_is_better else high)


def top_pairs(group: GroupSummary) -> tuple[Pair, ...]:
    """Every cyclic method of a group with static bits at its upper end, if they share a seed."""
    return _pairs(group, _same_top)


def budget_pairs(group: GroupSummary) -> tuple[Pair, ...]:
    """Every cyclic method with the best static bits that cost no more: best by mean, so lucky.

    Of equal means the cheapest.
    """
    return _pairs(group, _best_within)


def _pairs(
    group: GroupSummary, choose: Callable[[Row, Sequence[Row], bool], Row | None]
) -> tuple[Pair, ...]:
    found = []
    for row in group.rows:
        if not is_cyclic(row.method.method.config) or row.bitops is None:
            continue
        partner = choose(row, _statics(row, group.rows), group.higher_is_better)
        if partner is None or not partner.bitops:
            continue
        difference = paired_difference(row.method.values, partner.method.values)
        if difference is not None:
            cost = row.bitops / partner.bitops
            found.append(
                Pair(group=group, cyclic=row, static=partner, difference=difference, cost=cost)
            )
    return tuple(found)


def count(pairs: Sequence[Pair]) -> tuple[int, int, int, int]:
    """How many are better, within noise, worse, and without an interval."""
    better, worse = (sum(pair.is_better is side for pair in pairs) for side in (True, False))
    untold = sum(pair.verdict == UNKNOWN for pair in pairs)
    return better, len(pairs) - better - worse - untold, worse, untold


def counted(pairs: Sequence[Pair]) -> str:
    """The same in words."""
    better, alike, worse, untold = count(pairs)
    rest = f", {untold} without an interval" if untold else ""
    return f"{better} better, {alike} within noise, {worse} worse{rest}"


def costs(pairs: Sequence[Pair]) -> str:
    """From the least to the most, the static one's = 100 %."""
    low, high = (share_text(end(pair.cost for pair in pairs)) for end in (min, max))
    return low if low == high else f"{low} to {high}"


def _statics(row: Row, rows: Sequence[Row]) -> list[Row]:
    """Static bits with all else the same."""
    config = row.method.method.config
    return [
        other
        for other in rows
        if not other.is_scheduled and _is_alike(config, other.method.method.config)
    ]


def _is_alike(config: RunConfig, static: RunConfig) -> bool:
    """Model, data, length, quantizer, layers; float32 has neither of the last two."""
    own, other = _rest(config), _rest(static)
    if static.precision.is_float:
        own["precision"] = other["precision"] = None
    return own == other


def _same_top(row: Row, statics: Sequence[Row], higher_is_better: bool) -> Row | None:
    tops = _tops(row.method.method.config)
    return next((other for other in statics if _tops(other.method.method.config) == tops), None)


def _best_within(row: Row, statics: Sequence[Row], higher_is_better: bool) -> Row | None:
    sign = 1 if higher_is_better else -1
    affordable = [
        (sign * settled(other.summary.mean), -settled(other.bitops), other)
        for other in statics
        if other.summary is not None
        and other.bitops
        and other.bitops <= (row.bitops or 0.0) * (1 + _ROUNDING)
    ]
    return max(affordable, key=lambda entry: entry[:2])[2] if affordable else None


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
    does_cycle = str(forward).startswith("CR:") and _cycles(forward) > 0
    return does_cycle and backward.low == backward.high


def num_cycles(config: RunConfig) -> int | None:
    """The most that any role has; None where no bits go up and down.

    >>> from bitcycle.recipes import recipe
    >>> names = ("digits-cpt-3-8-8", "cifar100-resnet74-cpt-3-8-8", "digits-static-8-8")
    >>> [num_cycles(recipe(name)) for name in names]
    [8, 32, None]
    """
    return max((_cycles(schedule) for schedule in _schedules(config).values()), default=0) or None


def _cycles(schedule: Schedule) -> int:
    """How many there are; 0 for bits that do not go up and down."""
    inner = schedule
    if isinstance(schedule, Delay):
        if schedule.start == 1.0:  # never
            return 0
        inner = schedule.schedule
    return inner.cycles if isinstance(inner, Cyclic) and inner.low != inner.high else 0


def _schedules(config: RunConfig) -> dict[str, Schedule]:
    """Of every role that is given, and of every pattern of layers in it."""
    found: dict[str, Schedule] = {}
    for role, value in config.precision.given(auto=1).items():
        for pattern, text in (value if isinstance(value, dict) else {"": value}).items():
            found[f"{role} {pattern}"] = parse_schedule(text)
    return found


def _tops(config: RunConfig) -> dict[str, int]:
    """Of weights, activations, errors and gradients, whether given or inherited."""
    given = config.precision.given(auto=1)
    tops: dict[str, int] = {}
    for role, parent in PARENTS.items():
        texts: dict[str, Any] = {}  # by pattern of layers; "" is every layer
        for text in (given[parent], given.get(role, {})):
            texts |= text if isinstance(text, dict) else {"": text}
        tops |= {f"{role} {k}": cost_bits(parse_schedule(text).high) for k, text in texts.items()}
    return tops


def _rest(config: RunConfig) -> dict[str, Any]:
    """What else must be equal: every setting but the name, the bits and how they were found."""
    settings = to_settings(config)
    settings.pop("range_test", None)
    precision = {k: v for k, v in settings.get("precision", {}).items() if k not in ROLES}
    return {**settings, "name": None, "precision": precision}
