"""Methods whose bits change against static ones: the claim of the CPT paper.

A cyclic method is compared with static bits of the same top precision, over common seeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bitcycle.analysis.config_id import PRECISION_KEYWORDS
from bitcycle.analysis.statistics import Difference, paired_difference
from bitcycle.precision import PARENTS, cost_bits
from bitcycle.schedules import Delay, Schedule, parse_schedule
from bitcycle.schedules.cycle import Cyclic
from bitcycle.study.summary import GroupSummary, MethodSummary, best_within, summarize
from bitcycle.train.config import RunConfig
from tools.results.study_data import StudyData, to_settings

BETTER, NOISE, WORSE, UNKNOWN = "better", "within noise", "worse", "without an interval"
DIVERGED = "diverged"  # one of both has a value that is not finite


@dataclass(frozen=True, kw_only=True)
class CyclicComparison:
    """A method whose bits change against a static one, over common seeds.

    study, static_study: the studies of the runs. cost: of the static one's, if both are known.
    published: the same difference in the paper's table.
    """

    study: str
    static_study: str
    group: GroupSummary
    cyclic: MethodSummary
    static: MethodSummary
    difference: Difference
    cost: float | None
    published: float | None

    @property
    def verdict(self) -> str:
        """Better, worse or within noise, by the interval of the difference."""
        if not math.isfinite(self.difference.mean):
            return DIVERGED
        beyond = self.difference.is_beyond_noise
        if beyond is None:
            return UNKNOWN
        if not beyond:
            return NOISE
        return BETTER if (self.difference.mean > 0) == self.group.higher_is_better else WORSE


def compare(study: StudyData) -> list[CyclicComparison]:
    """Compare every cyclic method of the study with static bits of the same top precision."""
    found: list[CyclicComparison] = []
    for group, row in _cyclic(study):
        top = top_bits(row.method.config)
        statics = _static(study, group)
        same = [s for s in _same_setup(row, statics) if top_bits(s.row.method.config) == top]
        found += _against(study, group, row, same[:1])
    return found


def compare_all(study: StudyData) -> list[CyclicComparison]:
    """Compare every method whose bits change: as `compare` does, the others with the baseline."""
    known = {each.cyclic.method.key: each for each in compare(study)}
    found: list[CyclicComparison] = []
    for group in summarize(study.result):
        base = group.baseline_method
        for row in group.done:
            key = row.method.key
            if key in known:
                found.append(known[key])
            elif base is not None and row is not base and row.is_scheduled:
                static = _Static(study.name, base, study.ids[base.method.key], base.method.key)
                found += _against(study, group, row, [static])
    return found


def compare_at_cost(study: StudyData, others: Sequence[StudyData] = ()) -> list[CyclicComparison]:
    """Compare every cyclic method with the best static bits of any study that cost no more."""
    found: list[CyclicComparison] = []
    for group, row in _cyclic(study):
        statics = _static(study, group)
        for other in others:
            if other is not study:
                pool = [s for g in _groups(other) for s in _static(other, g)]
                statics += [static._replace(key=None) for static in pool]
        alike = _most_seeds(row, _same_setup(row, statics))
        best = best_within(
            [s.row for s in alike], row.bitops or 0.0, higher_is_better=group.higher_is_better
        )
        found += _against(study, group, row, [s for s in alike if s.row is best])
    return found


class _Static(NamedTuple):
    """A static method, the id of its configuration, and its key if it is of the same study."""

    study: str
    row: MethodSummary
    identity: str
    key: str | None


def _groups(study: StudyData) -> Sequence[GroupSummary]:
    return () if study.result.study.kind == "critical-periods" else summarize(study.result)


def _cyclic(study: StudyData) -> Iterator[tuple[GroupSummary, MethodSummary]]:
    for group in _groups(study):
        for row in group.done:
            if is_cyclic(row.method.config):
                yield group, row


def _static(study: StudyData, group: GroupSummary) -> list[_Static]:
    keys = [(row, row.method.key) for row in group.done if not row.is_scheduled]
    return [_Static(study.name, row, study.ids[key], key) for row, key in keys]


def _same_setup(row: MethodSummary, statics: Iterable[_Static]) -> list[_Static]:
    config = row.method.config
    return [s for s in statics if _is_same_setup(config, s.row.method.config)]


def _most_seeds(row: MethodSummary, statics: Iterable[_Static]) -> list[_Static]:
    """Every static configuration once, from the study that shares most seeds with the method."""
    best: dict[str, tuple[int, _Static]] = {}
    for static in statics:
        shared = len(row.result.values.keys() & static.row.result.values.keys())
        if static.identity not in best or shared > best[static.identity][0]:
            best[static.identity] = shared, static
    return [static for _, static in best.values()]


def _against(
    study: StudyData, group: GroupSummary, row: MethodSummary, statics: Iterable[_Static]
) -> Iterator[CyclicComparison]:
    for static in statics:
        difference = paired_difference(row.result.values, static.row.result.values)
        if difference is not None:
            key = row.method.key
            yield CyclicComparison(
                study=study.name,
                static_study=static.study,
                group=group,
                cyclic=row,
                static=static.row,
                difference=difference,
                cost=_relative(row.bitops, static.row.bitops),
                published=(
                    None if static.key is None else published_difference(study, key, static.key)
                ),
            )


def _relative(own: float | None, base: float | None) -> float | None:
    return own / base if own is not None and base else None


def published_difference(study: StudyData, own: str, base: str) -> float | None:
    """The published difference of two methods, if a paper has both for one network and dataset."""
    cell, other = study.published.get(own), study.published.get(base)
    if cell is None or other is None or own == base or cell["group"] != other["group"]:
        return None
    return float(cell["value"]) - float(other["value"])


# -- bits of a configuration --------------------------------------------------------------------


def is_cyclic(config: RunConfig) -> bool:
    """Whether the bits of any role go up and down.

    >>> from bitcycle.recipes import recipe
    >>> [is_cyclic(recipe(f"digits-{name}")) for name in ("cpt-3-8-8", "static-8-8", "float32")]
    [True, False, False]
    """
    return any(_cycles(schedule, config.steps) for schedule in _schedules(config).values())


def top_bits(config: RunConfig) -> dict[str, int]:
    """The highest bits of weights, activations, errors and gradients, by pattern of layers."""
    given = config.precision.schedule_texts(auto=1)
    found: dict[str, int] = {}
    for role, parent in PARENTS.items():
        texts: dict[str, Any] = {}  # "" is every layer
        for text in (given[parent], given.get(role, {})):
            texts |= text if isinstance(text, dict) else {"": text}
        found |= {f"{role} {k}": cost_bits(parse_schedule(t).high) for k, t in texts.items()}
    return found


def _schedules(config: RunConfig) -> dict[str, Schedule]:
    return {
        f"{role} {pattern}": parse_schedule(text)
        for role, value in config.precision.schedule_texts(auto=1).items()
        for pattern, text in (value if isinstance(value, dict) else {"": value}).items()
    }


def _cycles(schedule: Schedule, steps: int | None) -> bool:
    if isinstance(schedule, Cyclic):
        return schedule.low != schedule.high
    if isinstance(schedule, Delay):  # a start is a share of the run or a step
        start = schedule.start
        if start == 1.0 if isinstance(start, float) else steps is not None and start >= steps:
            return False
    return any(_cycles(part, steps) for part in schedule.parts())


def _is_same_setup(config: RunConfig, static: RunConfig) -> bool:
    """Whether only the bits differ; float32 has no quantizer that could."""
    own, other = _all_but_bits(config), _all_but_bits(static)
    if static.precision.is_float:
        own["precision"] = other["precision"]
    return own == other


def _all_but_bits(config: RunConfig) -> dict[str, Any]:
    settings = to_settings(config)
    settings.pop("range_test", None)
    precision = {
        k: v for k, v in settings.get("precision", {}).items() if k not in PRECISION_KEYWORDS
    }
    return {**settings, "name": None, "precision": precision}
