"""Cyclic bits against static ones at the same top: the comparison that the method is about."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bitcycle.study.numbers import share_text
from bitcycle.study.publish.cycles import is_alike, is_cyclic, tops
from bitcycle.study.statistics import Difference, paired_difference, settled
from bitcycle.study.summary import GroupSummary, Row, best_of

HIGHER, LOWER, NOISE, UNKNOWN = "higher", "lower", "within noise", "cannot tell"
_ROUNDING = 1e-9  # of a mean: equal but for float arithmetic


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
        if not other.is_scheduled and is_alike(config, other.method.method.config)
    ]


def _same_top(row: Row, statics: Sequence[Row], higher_is_better: bool) -> Row | None:
    top = tops(row.method.method.config)
    return next((other for other in statics if tops(other.method.method.config) == top), None)


def _best_within(row: Row, statics: Sequence[Row], higher_is_better: bool) -> Row | None:
    return best_of(statics, row.bitops or 0.0, higher_is_better=higher_is_better)
