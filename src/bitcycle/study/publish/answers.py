"""Cyclic against static bits over all studies: which comparisons there are, counted by rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bitcycle.study.numbers import decimals_for, fixed
from bitcycle.study.publish.page import all_pairs
from bitcycle.study.publish.pairs import (
    UNKNOWN,
    Pair,
    costs,
    counted,
    is_cyclic,
    is_plain,
    top_pairs,
)
from bitcycle.study.publish.restore import Evidence
from bitcycle.study.summary import GroupSummary, summarize

CHANCE = 0.025  # of a 95 % interval that leaves out the truth on one given side
LEVEL = 0.05
MARGIN = 1.0  # points of accuracy


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A pair with its study; ids: of both configurations, equal in studies that share the runs."""

    study: str
    pair: Pair
    ids: tuple[str, str]


def compared(
    published: Sequence[Evidence],
    choose: Callable[[GroupSummary], tuple[Pair, ...]] = top_pairs,
) -> list[Compared]:
    """Every cyclic method of every study with static bits, by default those at its top."""
    found = []
    for evidence in published:
        for pair in all_pairs(evidence, summarize(evidence.result), choose):
            keys = [row.method.method.key for row in (pair.cyclic, pair.static)]
            ids = evidence.ids[keys[0]], evidence.ids[keys[1]]
            found.append(Compared(study=evidence.study.name, pair=pair, ids=ids))
    return found


def distinct(entries: Sequence[Compared]) -> list[Compared]:
    """Studies that share runs count them once: of equal configurations that with the most seeds."""
    best: dict[tuple[str, str], Compared] = {}
    for entry in entries:
        known = best.get(entry.ids)
        if known is None or entry.pair.difference.n > known.pair.difference.n:
            best[entry.ids] = entry
    return list(best.values())


def hardest(entries: Sequence[Compared]) -> list[Compared]:
    """Each cyclic configuration once, with the best static bits that any of its studies has."""
    best: dict[str, Compared] = {}
    for entry in distinct(entries):
        known = best.get(entry.ids[0])
        if known is None or _static_mean(entry) > _static_mean(known):
            best[entry.ids[0]] = entry
    return list(best.values())


def _static_mean(entry: Compared) -> float:
    summary = entry.pair.static.summary
    assert summary is not None
    return summary.mean if entry.pair.group.higher_is_better else -summary.mean


def plain(entries: Sequence[Compared]) -> list[Compared]:
    """CPT as published, one comparison for each group of a study, shared ones once.

    Of several that with the study's baseline, then the one that most studies have.
    """
    shared = Counter(entry.ids for entry in entries)
    groups: dict[tuple[str, str], list[Compared]] = {}
    for entry in entries:
        if is_plain(entry.pair.cyclic.method.method.config):
            groups.setdefault((entry.study, entry.pair.group.group), []).append(entry)

    def fit(entry: Compared) -> tuple[bool, int]:
        return entry.pair.static.label == entry.pair.group.baseline, shared[entry.ids]

    return distinct([max(found, key=fit) for found in groups.values()])


def without_partner(published: Sequence[Evidence]) -> dict[str, int]:
    """Study -> how many of its cyclic configurations meet static bits at their top in no study."""
    met = {entry.ids[0] for entry in compared(published)}
    found: dict[str, int] = {}
    for evidence in published:
        keys = [
            row.method.key
            for row in evidence.result.methods
            if row.values and is_cyclic(row.method.config)
        ]
        alone = {evidence.ids[key] for key in keys} - met
        if alone and evidence.study.kind != "critical-periods":
            found[evidence.study.name] = len(alone)
    return found


def holm(p_values: Sequence[float], level: float = LEVEL) -> list[bool]:
    """Which stay significant when no more than `level` of all families may hold a false one.

    The k-th smallest of m is compared with level / (m - k), k from 0, up to the first that fails.

    >>> holm([0.03, 0.001, 0.02, 0.9])
    [False, True, False, False]
    """
    stays = [False] * len(p_values)
    for k, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        if p_values[i] > level / (len(p_values) - k):
            break
        stays[i] = True
    return stays


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
        f"{_by_chance(told)}"
    )


def _by_chance(told: Sequence[Pair]) -> str:
    """What so many comparisons show where nothing is; empty for one."""
    if len(told) < 2:
        return ""
    expected = CHANCE * len(told)
    number = "fewer than one" if expected < 1 else f"about {fixed(expected, 1)}"
    stays = holm([pair.difference.p or 0.0 for pair in told])
    left = [pair.is_better for pair, does_stay in zip(told, stays, strict=True) if does_stay]
    return (
        f" If cycling changed nothing, {number} of {len(told)} would still look better and as many "
        f"worse; corrected for their number (Holm), {left.count(True)} better and "
        f"{left.count(False)} worse remain."
    )


def budget_answer(entries: Sequence[Compared]) -> str:
    """And against the best static bits that cost no more, a harder test."""
    pairs = [entry.pair for entry in hardest(entries)]
    if not pairs:
        return ""
    return (
        "Against the best static bits that cost no more than the cyclic schedule, where a study "
        f"has such: {counted(pairs)}, of {len(pairs)}."
    )


def allowed(entries: Sequence[Compared]) -> str:
    """How large a loss the intervals of what is within noise still allow, by metric."""
    found = distinct(entries)
    worst: dict[str, tuple[float, Compared]] = {}
    for entry in found:
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
        "Within noise is not the same as equal: the intervals still allow a loss of up to "
        f"{' and of '.join(said)}.{_excluded(found)}"
    )


def _excluded(entries: Sequence[Compared]) -> str:
    """In how many comparisons a loss of a point is ruled out, one by one."""
    losses = [entry.pair.loss_allowed() for entry in entries
              if entry.pair.group.metric == "accuracy"]  # fmt: skip
    known = [loss for loss in losses if loss is not None]
    if not known:
        return ""
    return (
        f" A loss of more than {MARGIN:g} point of accuracy is outside the interval in "
        f"{sum(loss <= MARGIN for loss in known)} of {len(known)}."
    )


def who(pair: Pair) -> str:
    """Both sides, with their group."""
    place = f"{pair.group.group}, " if pair.group.group else ""
    return f"{place}{pair.cyclic.label} against {pair.static.label}"
