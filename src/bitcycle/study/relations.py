"""The papers' two claims beyond the mean: dearer schedules end better, cycling spreads less."""

from __future__ import annotations

from dataclasses import dataclass

from bitcycle.study.statistics import (
    Correlation,
    VarianceTest,
    brown_forsythe,
    rank_correlation,
)
from bitcycle.study.summary import GroupSummary


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
