"""What a study found: per group a row for each method, its difference and cost to the baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bitcycle.analysis.statistics import (
    Correlation,
    Difference,
    Summary,
    VarianceTest,
    brown_forsythe,
    paired_difference,
    pareto_front,
    rank_correlation,
    settled,
    summarize_values,
)
from bitcycle.recipes import Published
from bitcycle.schedules import parse_schedule
from bitcycle.study.results import MethodResult, StudyResult
from bitcycle.study.study import Method
from bitcycle.train.config import RunConfig


def published_values(method: Method, metric: str) -> tuple[Published, ...]:
    """Its published values of that metric, equal numbers once."""
    by_number = {p.value: p for p in reversed(method.published) if p.metric == metric}
    return tuple(sorted(by_number.values(), key=lambda p: method.published.index(p)))


def published_value(method: Method, metric: str) -> float | None:
    """Its published value, when there is exactly one."""
    found = published_values(method, metric)
    return found[0].value if len(found) == 1 else None


def published_cost(method: Method) -> float | None:
    """In GBitOPs, when there is exactly one."""
    return published_value(method, "cost")


def published_relative_cost(method: Method, base: Method | None) -> float | None:
    """To the published cost of the baseline."""
    own = published_cost(method)
    other = None if base is None else published_cost(base)
    return own / other if own is not None and other else None


def published_difference(method: Method, base: Method | None, metric: str) -> float | None:
    """To the published value of the baseline; None for the baseline itself."""
    if base is None or base is method:
        return None
    own, other = published_value(method, metric), published_value(base, metric)
    return None if own is None or other is None else own - other


def sources(result: StudyResult) -> tuple[str, ...]:
    """Where the published numbers stand: tables and figures, each once."""
    found = (p.where for row in result.methods for p in row.method.published)
    return tuple(dict.fromkeys(found))


_ROUNDING = 1e-9  # of a cost: equal but for float arithmetic


@dataclass(frozen=True, kw_only=True)
class Row:
    """One method. Everything is None (and is_on_front False) before one of its runs is done.

    difference: to the baseline over common seeds; None for the baseline itself. relative_cost:
    training BitOPs, the baseline's = 1. is_on_front: no method of the group is both cheaper and
    better, by cost and mean.
    """

    method: MethodResult
    summary: Summary | None
    difference: Difference | None
    relative_cost: float | None
    is_on_front: bool

    @property
    def label(self) -> str:
        """The method's."""
        return self.method.method.label

    @property
    def bitops(self) -> float | None:
        """Mean training cost of a run."""
        return self.method.bitops

    @property
    def is_scheduled(self) -> bool:
        """Whether its bits change during training."""
        return has_changing_bits(self.method.method.config)


@dataclass(frozen=True, kw_only=True)
class GroupSummary:
    """The rows of one group, in the study's order. baseline: its label; None without one."""

    group: str
    metric: str
    higher_is_better: bool
    baseline: str | None
    rows: tuple[Row, ...]

    @property
    def baseline_row(self) -> Row | None:
        """What the others are compared with."""
        return next((row for row in self.rows if row.label == self.baseline), None)

    @property
    def done(self) -> tuple[Row, ...]:
        """The rows with at least one finished run."""
        return tuple(row for row in self.rows if row.summary is not None)

    @property
    def others(self) -> tuple[Row, ...]:
        """The rows that are compared with the baseline."""
        return tuple(row for row in self.rows if row.difference is not None)

    def is_better(self, row: Row) -> bool | None:
        """Than the baseline; None for a difference that may be noise."""
        if row.difference is None or not row.difference.is_beyond_noise:
            return None
        return (row.difference.mean > 0) == self.higher_is_better


def summarize(result: StudyResult) -> tuple[GroupSummary, ...]:
    """Every group of the study, in its order."""
    return tuple(_summarize_group(result, group) for group in result.study.groups)


def _summarize_group(result: StudyResult, group: str) -> GroupSummary:
    methods, base = result.of(group), result.baseline(group)
    higher_is_better = result.study.higher_is_better(group)
    summaries = [summarize_values(m.values.values()) if m.values else None for m in methods]
    judged = [
        (i, method.bitops, summary.mean)
        for i, (method, summary) in enumerate(zip(methods, summaries, strict=True))
        if summary is not None and method.bitops is not None
    ]
    on_front = pareto_front(
        [cost for _, cost, _ in judged],
        [mean for _, _, mean in judged],
        higher_is_better=higher_is_better,
    )
    front = {i for (i, _, _), is_on in zip(judged, on_front, strict=True) if is_on}
    rows = tuple(
        Row(
            method=method,
            summary=summary,
            difference=_difference(method, base),
            relative_cost=_relative(method.bitops, None if base is None else base.bitops),
            is_on_front=i in front,
        )
        for i, (method, summary) in enumerate(zip(methods, summaries, strict=True))
    )
    return GroupSummary(
        group=group,
        metric=result.study.metric(group),
        higher_is_better=higher_is_better,
        baseline=None if base is None else base.method.label,
        rows=rows,
    )


def _difference(method: MethodResult, base: MethodResult | None) -> Difference | None:
    if base is None or method is base:
        return None
    return paired_difference(method.values, base.values)


def _relative(cost: float | None, base: float | None) -> float | None:
    return None if cost is None or not base else cost / base


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The best mean among the methods that cost at most `bitops`."""

    bitops: float
    best: Row


def best_within(group: GroupSummary, budget_bitops: float) -> Row | None:
    """The method with the best mean final value among those that cost no more than the budget.

    Of means that agree in nine digits the cheaper one; None when nothing is that cheap.
    """
    return best_of(group.done, budget_bitops, higher_is_better=group.higher_is_better)


def best_of(rows: Sequence[Row], budget_bitops: float, *, higher_is_better: bool) -> Row | None:
    """The same of any rows; a mean that is no number is never the best."""
    sign = 1 if higher_is_better else -1
    affordable = [
        (sign * settled(row.summary.mean), -settled(row.bitops), row)
        for row in rows
        if row.summary is not None and math.isfinite(row.summary.mean)
        and row.bitops and row.bitops <= budget_bitops * (1 + _ROUNDING)
    ]  # fmt: skip
    return max(affordable, key=lambda entry: entry[:2])[2] if affordable else None


def budgets(group: GroupSummary) -> tuple[Budget, ...]:
    """`best_within` the cost of every method, cheapest budget first; equal costs once."""
    costs: list[float] = []
    for cost in sorted(row.bitops for row in group.done if row.bitops is not None):
        if not costs or not math.isclose(cost, costs[-1], rel_tol=_ROUNDING):
            costs.append(cost)
    found = ((cost, best_within(group, cost)) for cost in costs)
    return tuple(Budget(bitops=cost, best=best) for cost, best in found if best is not None)


def has_changing_bits(config: RunConfig) -> bool:
    """Whether any role's schedule has more than one number of bits."""
    texts = [
        inner
        for text in config.precision.schedule_texts(auto=1).values()
        for inner in (text.values() if isinstance(text, dict) else [text])
    ]
    schedules = [parse_schedule(text) for text in texts]
    return any(schedule.low != schedule.high for schedule in schedules)


@dataclass(frozen=True, kw_only=True)
class CostRelation:
    """Mean final metric against cost over the methods whose bits change (and on which front).

    correlation: of cost and *goodness*: positive when dearer is better, also for a perplexity.
    front: labels of the group's methods on the Pareto front, cheapest first.
    """

    group: str
    labels: tuple[str, ...]
    costs: tuple[float, ...]
    means: tuple[float, ...]
    correlation: Correlation
    front: tuple[str, ...]


def cost_relation(group: GroupSummary) -> CostRelation:
    """The relation within one group."""
    sign = 1 if group.higher_is_better else -1
    points = [
        (row.label, row.bitops, row.summary.mean)
        for row in group.done
        if row.is_scheduled and row.summary is not None and row.bitops is not None
    ]
    costs = tuple(cost for _, cost, _ in points)
    means = tuple(mean for _, _, mean in points)
    on_front = sorted((row.bitops or 0.0, row.label) for row in group.done if row.is_on_front)
    return CostRelation(
        group=group.group,
        labels=tuple(label for label, _, _ in points),
        costs=costs,
        means=means,
        correlation=rank_correlation(costs, [sign * mean for mean in means]),
        front=tuple(label for _, label in on_front),
    )


@dataclass(frozen=True, kw_only=True)
class VarianceRow:
    """A method's deviation beside the baseline's. test: None below three seeds on either side."""

    label: str
    std: float
    baseline_std: float
    test: VarianceTest | None


def variance_rows(group: GroupSummary) -> tuple[VarianceRow, ...]:
    """Every method with two seeds or more against the baseline; empty when that has fewer."""
    base = group.baseline_row
    if base is None or base.summary is None or base.summary.std is None:
        return ()
    base_values = list(base.method.values.values())
    return tuple(
        VarianceRow(
            label=row.label,
            std=row.summary.std,
            baseline_std=base.summary.std,
            test=brown_forsythe([list(row.method.values.values()), base_values]),
        )
        for row in group.done
        if row is not base and row.summary is not None and row.summary.std is not None
    )
