"""Cyclic against static bits over all studies, in sentences: every number counted by rule."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from bitcycle.study.numbers import DECIMALS, POINTS, decimals_for, fixed, share_text
from bitcycle.study.publish.comparisons import Compared, distinct, hardest
from bitcycle.study.publish.pairs import UNKNOWN, Pair, costs, counted
from bitcycle.study.statistics import holm

CHANCE = 0.025  # of a 95 % interval that leaves out the truth on one given side
LOSSES = (0.5, 1.0)  # in points
FEW = 5  # seeds, with which Holm's correction of many comparisons leaves hardly anything


def answer(entries: Sequence[Compared]) -> str:
    """Does cyclic precision match or beat static bits at a lower cost?"""
    pairs = [entry.pair for entry in distinct(entries)]
    if not pairs:
        return "No finished study compares cyclic with static bits at the same top yet."
    cheaper = [pair for pair in pairs if pair.is_cheaper]
    cost = f"In {len(cheaper)} of {len(pairs)} the cyclic schedule took fewer BitOPs"
    cost += f", {costs(cheaper)} of the static run's" if cheaper else ""
    told = [pair for pair in pairs if pair.verdict != UNKNOWN]
    kept = sum(pair.is_cheaper and pair.is_better is not False for pair in told)
    plural = "" if len(pairs) == 1 else "s"
    return (
        f"Of {len(pairs)} comparison{plural} of a cyclic schedule with static bits at its top: "
        f"{counted(pairs)}. {cost}. Cheaper and not worse beyond noise: {kept} of {len(pairs)}."
        f"{''.join(_directions(pairs))}{_by_chance(told)}"
    )


def _directions(pairs: Sequence[Pair]) -> Iterator[str]:
    """Whom the differences favour, noise or not, and how large they are: for each metric."""
    metrics = list(dict.fromkeys(pair.group.metric for pair in pairs))
    for metric in metrics:
        of_it = [pair for pair in pairs if pair.group.metric == metric]
        found = [pair for pair in of_it if math.isfinite(pair.difference.mean)]
        if not found:
            continue
        means = [pair.difference.mean for pair in found]
        low, high = (fixed(end(means), DECIMALS, sign=True) for end in (min, max))
        unit = POINTS.get(metric, "")
        what = "" if unit and len(metrics) == 1 else f" in {metric}"
        what += "" if found[0].group.higher_is_better else " (lower is better)"
        if len(found) == 1:
            yield f" The difference{what} is {low}{unit}."
            continue
        sides = [pair.side for pair in found]
        yield (
            f" Of {len(found)} differences{what} {sides.count(1)} favour the cycle, "
            f"{sides.count(-1)} the static bits, {sides.count(0)} are 0; they go from {low} to "
            f"{high}{unit}."
        )


def _by_chance(told: Sequence[Pair]) -> str:
    """What so many comparisons show where nothing is; empty for one."""
    if len(told) < 2:
        return ""
    expected = CHANCE * len(told)
    number = fixed(expected, 1 if expected >= 0.1 else 2)
    stays = holm([pair.difference.p or 0.0 for pair in told])
    left = [pair.is_better for pair, does_stay in zip(told, stays, strict=True) if does_stay]
    return (
        f" By chance alone about {number} of {len(told)} would look better and as many worse; "
        f"corrected for their number (Holm), {left.count(True)} better and {left.count(False)} "
        f"worse remain{'' if left else _power(told)}."
    )


def _power(told: Sequence[Pair]) -> str:
    """What few seeds can show at all after such a correction; empty where there are enough."""
    fewest = min(pair.difference.n for pair in told)
    return "" if fewest > FEW else f", which few seeds (from n = {fewest}) could hardly show"


def budget_answer(entries: Sequence[Compared]) -> str:
    """And against the best static bits that cost no more, a harder test."""
    pairs = [entry.pair for entry in hardest(entries)]
    if not pairs:
        return ""
    low, high = (share_text(end(1 / pair.cost for pair in pairs)) for end in (min, max))
    cost = low if low == high else f"{low} to {high}"
    return (
        "Against the best static bits that cost no more than the cyclic schedule, where any study "
        f"has such ({cost} of its cost): {counted(pairs)}, of {len(pairs)}."
    )


def allowed(entries: Sequence[Compared]) -> str:
    """Which losses the intervals leave out, and how large those within noise still may be."""
    worst: dict[str, tuple[float, Compared]] = {}
    for entry in distinct(entries):
        loss, metric = entry.pair.loss_allowed(), entry.pair.group.metric
        if loss is None or entry.pair.is_better is not None:
            continue
        if loss > worst.get(metric, (-1.0,))[0]:
            worst[metric] = (loss, entry)
    said = []
    for metric, (loss, entry) in worst.items():
        amount = fixed(loss, decimals_for(loss))
        what = f"{amount} points" if metric == "accuracy" else f"{amount} in {metric}"
        said.append(f"{what} ({entry.study}, {who(entry.pair)})")
    if not said:
        return ""
    return (
        f"Within noise is not the same as equal.{_excluded(entries)} The intervals of those "
        f"within noise still allow a loss of up to {' and of '.join(said)}."
    )


def _excluded(entries: Sequence[Compared]) -> str:
    """How many of the accuracies cannot have lost more than a point; empty without any."""
    found = [e.pair.loss_allowed() for e in distinct(entries) if e.pair.group.metric == "accuracy"]
    told = [loss for loss in found if loss is not None]
    if not told:
        return ""
    counts = [f"{sum(loss <= most for loss in told)} of {len(told)}" for most in LOSSES]
    return (
        f" A loss of more than {LOSSES[0]:g} points of accuracy is outside the interval in "
        f"{counts[0]}, of more than {LOSSES[1]:g} in {counts[1]}."
    )


def who(pair: Pair) -> str:
    """Both sides, with their group."""
    place = f"{pair.group.group}, " if pair.group.group else ""
    return f"{place}{pair.cyclic.label} against {pair.static.label}"
