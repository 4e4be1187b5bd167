"""Cyclic against static bits over all studies: which comparisons there are, each once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from bitcycle.study.publish.beside import published_change
from bitcycle.study.publish.cycles import is_cyclic, is_plain
from bitcycle.study.publish.pairs import Pair, top_pairs
from bitcycle.study.publish.restore import Evidence
from bitcycle.study.publish.settings import DEFAULT
from bitcycle.study.statistics import settled
from bitcycle.study.summary import GroupSummary, Row, summarize


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A pair with its study; ids: of both configurations, equal in studies that share the runs.

    partner: the study that has the static runs, where that is another one. published: what the
    papers have for the same pair.
    """

    study: str
    pair: Pair
    ids: tuple[str, str]
    partner: str = ""
    published: float | None = None


def compared(
    published: Sequence[Evidence],
    choose: Callable[[GroupSummary], tuple[Pair, ...]] = top_pairs,
) -> list[Compared]:
    """Every cyclic method of every study with static bits, by default those at its top.

    Static runs of one study are there for the cycles of all.
    """
    statics = _statics(published)
    return [
        entry
        for evidence in published
        if evidence.has_front
        for group in summarize(evidence.result)
        for entry in _compared(evidence, group, statics, choose)
    ]


def _statics(published: Sequence[Evidence]) -> dict[str, tuple[str, GroupSummary, Row]]:
    """Every static configuration by its id, with study and group: where it has the most seeds."""
    found: dict[str, tuple[str, GroupSummary, Row]] = {}
    for evidence in published:
        for group in summarize(evidence.result) if evidence.has_front else ():
            for row in group.done:
                name = evidence.ids[row.method.method.key]
                known = found.get(name)
                is_more = known is None or len(row.method.values) > len(known[2].method.values)
                if not row.is_scheduled and is_more:
                    found[name] = (evidence.study.name, group, row)
    return found


def _compared(
    evidence: Evidence,
    group: GroupSummary,
    statics: Mapping[str, tuple[str, GroupSummary, Row]],
    choose: Callable[[GroupSummary], tuple[Pair, ...]],
) -> Iterator[Compared]:
    own = {evidence.ids[row.method.method.key] for row in group.rows}
    others = {
        name: (study, row)
        for name, (study, where, row) in statics.items()
        if name not in own and where.metric == group.metric
    }
    names = {id(row): name for name, (_, row) in others.items()}
    for pair in choose(replace(group, rows=(*group.rows, *(row for _, row in others.values())))):
        other = names.get(id(pair.static))
        keys = [row.method.method.key for row in (pair.cyclic, pair.static)]
        yield Compared(
            study=evidence.study.name,
            pair=replace(pair, group=group),
            ids=(evidence.ids[keys[0]], other or evidence.ids[keys[1]]),
            partner="" if other is None else others[other][0],
            published=None if other else published_change(evidence, pair),
        )


def distinct(entries: Sequence[Compared]) -> list[Compared]:
    """Studies that share runs count them once: of equal configurations that with the most seeds.

    Then that of a study that has both sides itself.
    """

    def order(entry: Compared) -> tuple[int, bool]:
        return entry.pair.difference.n, not entry.partner

    best: dict[tuple[str, str], Compared] = {}
    for entry in entries:
        known = best.get(entry.ids)
        if known is None or order(entry) > order(known):
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


def _strength(entry: Compared) -> tuple[float, float, bool]:
    """Of the static bits: the better mean, of equal ones the lower cost, then the same study."""
    row = entry.pair.static
    assert row.summary is not None
    sign = 1 if entry.pair.group.higher_is_better else -1
    mean = sign * settled(row.summary.mean) if math.isfinite(row.summary.mean) else -math.inf
    return mean, -settled(row.bitops or 0.0), not entry.partner


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
