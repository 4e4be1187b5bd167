"""Cyclic against static bits over all studies: which comparisons there are, counted by rule."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bitcycle.study.numbers import DECIMALS, POINTS, decimals_for, fixed, share_text
from bitcycle.study.publish.cycles import is_cyclic, is_plain
from bitcycle.study.publish.page import all_pairs
from bitcycle.study.publish.pairs import (
    UNKNOWN,
    Pair,
    costs,
    counted,
    top_pairs,
)
from bitcycle.study.publish.restore import Evidence
from bitcycle.study.publish.settings import DEFAULT
from bitcycle.study.statistics import settled
from bitcycle.study.summary import GroupSummary, summarize

CHANCE = 0.025  # of a 95 % interval that leaves out the truth on one given side
LEVEL = 0.05


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
        if known is None or _strength(entry) > _strength(known):
            best[entry.ids[0]] = entry
    return list(best.values())


def _strength(entry: Compared) -> tuple[float, float]:
    """Of the static bits: the better mean, of equal ones the lower cost."""
    row = entry.pair.static
    assert row.summary is not None
    sign = 1 if entry.pair.group.higher_is_better else -1
    return sign * settled(row.summary.mean), -settled(row.bitops or 0.0)


def plain(entries: Sequence[Compared]) -> list[Compared]:
    """Every comparison of CPT's own schedule, shared ones once."""
    return distinct(list(_plain_entries(entries)))


def main(entries: Sequence[Compared]) -> list[Compared]:
    """Of those one for each network and data of a study, chosen without a look at the values.

    That with the study's baseline, then the one that most studies have.
    """
    shared = Counter(entry.ids for entry in entries)
    networks: dict[tuple[str, str, str], list[Compared]] = {}
    for entry in _plain_entries(entries):
        config = entry.pair.cyclic.method.method.config
        networks.setdefault((entry.study, config.model.name, config.data.name), []).append(entry)

    def fit(entry: Compared) -> tuple[bool, int]:
        return entry.pair.static.label == entry.pair.group.baseline, shared[entry.ids]

    return distinct([max(found, key=fit) for found in networks.values()])


def _plain_entries(entries: Sequence[Compared]) -> Iterator[Compared]:
    """Those of CPT's own schedule; of a group with several quantizers those of the default one."""
    groups: dict[tuple[str, str], list[Compared]] = {}
    for entry in entries:
        if is_plain(entry.pair.cyclic.method.method.config):
            groups.setdefault((entry.study, entry.pair.group.group), []).append(entry)
    for found in groups.values():
        default = [e for e in found if _quantizer(e) == DEFAULT.precision.quantizer]
        yield from default or found


def _quantizer(entry: Compared) -> str:
    return entry.pair.cyclic.method.method.config.precision.quantizer


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
        "worse remain."
    )


def budget_answer(entries: Sequence[Compared]) -> str:
    """And against the best static bits that cost no more, a harder test."""
    pairs = [entry.pair for entry in hardest(entries)]
    if not pairs:
        return ""
    low, high = (share_text(end(1 / pair.cost for pair in pairs)) for end in (min, max))
    cost = low if low == high else f"{low} to {high}"
    return (
        "Against the best static bits that cost no more than the cyclic schedule, where a study "
        f"has such ({cost} of its cost): {counted(pairs)}, of {len(pairs)}."
    )


def allowed(entries: Sequence[Compared]) -> str:
    """How large a loss the intervals of what is within noise still allow, by metric."""
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
        "Within noise is not the same as equal: the intervals still allow a loss of up to "
        f"{' and of '.join(said)}."
    )


def who(pair: Pair) -> str:
    """Both sides, with their group."""
    place = f"{pair.group.group}, " if pair.group.group else ""
    return f"{place}{pair.cyclic.label} against {pair.static.label}"
