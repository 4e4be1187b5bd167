"""Cyclic against static bits over all studies: which comparisons there are, counted by rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bitcycle.study.numbers import POINTS, decimals_for, fixed, share_text
from bitcycle.study.publish.page import all_pairs
from bitcycle.study.publish.pairs import UNKNOWN, Pair, top_pairs
from bitcycle.study.publish.restore import Evidence
from bitcycle.study.summary import GroupSummary, summarize

CHANCE = 0.025  # of a 95 % interval that leaves out the truth on one given side


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


def answer(entries: Sequence[Compared]) -> str:
    """Does cyclic precision match or beat static bits at a lower cost?"""
    pairs = [entry.pair for entry in distinct(entries)]
    if not pairs:
        return "No finished study compares cyclic with static bits at the same top yet."
    told = [pair for pair in pairs if pair.verdict != UNKNOWN]
    better = sum(pair.is_better is True for pair in told)
    worse = sum(pair.is_better is False for pair in told)
    cheaper = [pair for pair in pairs if pair.is_cheaper]
    shares = [pair.cost for pair in cheaper]
    cost = f"In {len(cheaper)} of {len(pairs)} the cyclic schedule took fewer BitOPs"
    if shares:
        low, high = share_text(min(shares)), share_text(max(shares))
        cost += f", {low}{'' if low == high else f' to {high}'} of the static run's"
    kept = sum(pair.is_cheaper and pair.is_better is not False for pair in told)
    untold = len(pairs) - len(told)
    rest = f", {untold} without an interval" if untold else ""
    expected = fixed(CHANCE * len(told), 1 if len(told) >= 20 else 2)
    return (
        f"Of {len(pairs)} comparisons of a cyclic schedule with static bits at its top: {better} "
        f"better, {len(told) - better - worse} within noise, {worse} worse{rest}. {cost}. "
        f"Cheaper and not worse beyond noise: {kept} of {len(told)}. By chance alone about "
        f"{expected} of {len(told)} would look better and as many worse."
    )


def budget_answer(entries: Sequence[Compared]) -> str:
    """And against the best static bits that cost no more, a harder test."""
    pairs = [entry.pair for entry in distinct(entries)]
    if not pairs:
        return ""
    better, worse = (sum(pair.is_better is side for pair in pairs) for side in (True, False))
    untold = sum(pair.verdict == UNKNOWN for pair in pairs)
    rest = f", {untold} without an interval" if untold else ""
    return (
        f"Against the best static bits that cost no more, where a study has such: {better} better, "
        f"{len(pairs) - better - worse - untold} within noise, {worse} worse{rest}, of "
        f"{len(pairs)}."
    )


def allowed(entries: Sequence[Compared]) -> str:
    """How large a loss the intervals of what is within noise still allow, by metric."""
    worst: dict[str, tuple[float, Compared]] = {}
    for entry in distinct(entries):
        loss, metric = entry.pair.loss_allowed(), entry.pair.group.metric
        is_known = loss is not None and entry.pair.is_better is None
        if is_known and loss is not None and loss > worst.get(metric, (-1.0,))[0]:
            worst[metric] = (loss, entry)
    said = []
    for metric, (loss, entry) in worst.items():
        amount = f"{fixed(loss, decimals_for(loss))}{POINTS.get(metric, f' of {metric}')}"
        said.append(f"{amount} ({entry.study}, {who(entry.pair)})")
    if not said:
        return ""
    return (
        "Within noise is not the same as equal: the widest interval among them still allows a loss "
        f"of {' and of '.join(said)}."
    )


def who(pair: Pair) -> str:
    """Both sides, with their group."""
    place = f"{pair.group.group}, " if pair.group.group else ""
    return f"{place}{pair.cyclic.label} against {pair.static.label}"
