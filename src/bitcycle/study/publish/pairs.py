"""Cyclic bits against static ones at the same top: the comparison that the method is about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bitcycle.schedules import Delay, Schedule, parse_schedule
from bitcycle.schedules.cyclic import Cyclic
from bitcycle.study.identity import ROLES
from bitcycle.study.publish.settings import to_settings
from bitcycle.study.statistics import Difference, paired_difference
from bitcycle.study.summary import GroupSummary, Row
from bitcycle.train.config import RunConfig

HIGHER, LOWER, NOISE, UNKNOWN = "higher", "lower", "within noise", "cannot tell"


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
        return self.cost < 1

    def words(self) -> str:
        """The verdict, with what it means."""
        if self.verdict == UNKNOWN:
            one = self.difference.n == 1
            return f"{UNKNOWN}: {'one seed' if one else 'the same in every seed'}"
        return self.verdict if self.is_better is None else (
            f"{self.verdict} ({'better' if self.is_better else 'worse'})"
        )  # fmt: skip

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
    """Every cyclic method with the best static bits that cost no more: best by mean, so lucky."""
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


def _statics(row: Row, rows: Sequence[Row]) -> list[Row]:
    """Static bits with all else the same: model, data, length, quantizer, layers."""
    wanted = _rest(row.method.method.config)
    return [
        other
        for other in rows
        if not other.is_scheduled and _rest(other.method.method.config) == wanted
    ]


def _same_top(row: Row, statics: Sequence[Row], higher_is_better: bool) -> Row | None:
    tops = _tops(row.method.method.config)
    return next((other for other in statics if _tops(other.method.method.config) == tops), None)


def _best_within(row: Row, statics: Sequence[Row], higher_is_better: bool) -> Row | None:
    sign = 1 if higher_is_better else -1
    affordable = [
        (sign * other.summary.mean, -i, other)
        for i, other in enumerate(statics)
        if other.summary is not None and other.bitops and other.bitops <= (row.bitops or 0.0)
    ]
    return max(affordable, key=lambda entry: entry[:2])[2] if affordable else None


def is_cyclic(config: RunConfig) -> bool:
    """Whether any role's bits go up and down, from the start or later.

    >>> from bitcycle.recipes import recipe
    >>> [is_cyclic(recipe(f"digits-{name}")) for name in ("cpt-3-8-8", "static-8-8", "float32")]
    [True, False, False]
    """
    return any(_cycles(schedule) for schedule in _schedules(config).values())


def _cycles(schedule: Schedule) -> bool:
    inner = schedule
    if isinstance(schedule, Delay):
        if schedule.start == 1.0:  # never
            return False
        inner = schedule.schedule
    return isinstance(inner, Cyclic) and inner.low != inner.high


def _schedules(config: RunConfig) -> dict[str, Schedule]:
    """Of every role that is given, and of every pattern of layers in it."""
    found: dict[str, Schedule] = {}
    for role, value in config.precision.given(auto=1).items():
        for pattern, text in (value if isinstance(value, dict) else {"": value}).items():
            found[f"{role} {pattern}"] = parse_schedule(text)
    return found


def _tops(config: RunConfig) -> dict[str, Any]:
    return {role: schedule.high for role, schedule in _schedules(config).items()}


def _rest(config: RunConfig) -> dict[str, Any]:
    """What else must be equal: every setting but the name and the bits."""
    settings = to_settings(config)
    precision = {k: v for k, v in settings.get("precision", {}).items() if k not in ROLES}
    return {**settings, "name": None, "precision": precision}
