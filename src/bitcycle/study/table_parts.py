"""The tables of a study's statistics, each built from its summary."""

from __future__ import annotations

from collections.abc import Sequence

from bitcycle.study.caption import states_text
from bitcycle.study.numbers import (
    bitops_text,
    correlation_text,
    cost_text,
    decimals_for,
    difference_text,
    fixed,
    interval_text,
    p_text,
    summary_text,
)
from bitcycle.study.published import published_difference
from bitcycle.study.relations import cost_relation, variance_rows
from bitcycle.study.summary import Budget, GroupSummary, Row, budgets
from bitcycle.study.table_paper import baseline_method, metric_heading
from bitcycle.study.table_text import Table, without_empty_columns


def values_table(groups: Sequence[GroupSummary]) -> Table:
    """Every method with its n, the interval of its mean, its cost and what is not done."""
    headings = {metric_heading(group) for group in groups}
    rows = [
        (
            group.group,
            row.label,
            metric_heading(group) if len(headings) > 1 else "",
            summary_text(row.summary) if row.summary else "",
            str(row.summary.n) if row.summary else "0",
            interval_text(row.summary.low, row.summary.high) if row.summary else "",
            cost_text(row.relative_cost) if row.relative_cost is not None else "",
            bitops_text(row.bitops).removesuffix("BitOPs") if row.bitops is not None else "",
            "yes" if row.is_on_front else "",
            states_text(row.method),
        )
        for group in groups
        for row in group.rows
    ]
    value = headings.pop() if len(headings) == 1 else "value"
    names = ("group", "method", "metric", value, "n", "95 % interval", "cost", "BitOPs", "front",
             "not done")  # fmt: skip
    return without_empty_columns(
        Table(
            name="values",
            title="Final values",
            columns=tuple(("", name) for name in names),
            rows=tuple(rows),
            is_number=tuple(name in (value, *names[4:8]) for name in names),
        )
    )


def differences_table(groups: Sequence[GroupSummary]) -> Table:
    """Every method against the baseline of its group, over the seeds that both have."""
    rows = []
    for group in groups:
        base = group.baseline_row
        for row in group.rows if base is not None else ():
            if row is base:
                continue
            published = published_difference(
                row.method.method, baseline_method(group), group.metric
            )
            difference = row.difference
            rows.append(
                (
                    group.group,
                    row.label,
                    str(group.baseline),
                    difference_text(difference) if difference else "",
                    str(difference.n) if difference else "0",
                    p_text(difference.p) if difference else "",
                    "" if published is None else fixed(published, 2, sign=True),
                )
            )
    names = ("group", "method", "against", "difference (95 % interval)", "pairs", "p", "published")
    return without_empty_columns(
        Table(
            name="differences",
            title="Differences",
            columns=tuple(("", name) for name in names),
            rows=tuple(rows),
            is_number=(False, False, False, True, True, True, True),
        )
    )


def budget_table(groups: Sequence[GroupSummary]) -> Table:
    """The best mean within the cost of each method."""
    rows = []
    for group in groups:
        base = group.baseline_row
        for budget in _telling(group):
            relative = budget.bitops / base.bitops if base is not None and base.bitops else None
            rows.append(
                (
                    group.group,
                    bitops_text(budget.bitops),
                    cost_text(relative) if relative is not None else "",
                    budget.best.label,
                    summary_text(budget.best.summary),
                )
            )
    return without_empty_columns(
        Table(
            name="budgets",
            title="Best within a budget",
            columns=(("", "group"), ("", "budget"), ("", "cost"), ("", "best"), ("", "value")),
            rows=tuple(rows),
            is_number=(False, True, True, False, True),
        )
    )


def _telling(group: GroupSummary) -> list[Budget]:
    """The budgets from which on another method is best, and the baseline's."""
    found: list[Budget] = []
    base = group.baseline_row
    best: Row | None = None
    for budget in budgets(group):
        if budget.best is not best or (base is not None and budget.bitops == base.bitops):
            found.append(budget)
        best = budget.best
    return found


def variance_table(groups: Sequence[GroupSummary]) -> Table:
    """Standard deviations beside the baseline's, with a Brown-Forsythe test."""
    rows = [
        (
            group.group,
            row.label,
            fixed(row.std, decimals_for(row.std)),
            f"{fixed(row.baseline_std, decimals_for(row.baseline_std))} ({group.baseline})",
            "-" if row.test is None else fixed(row.test.statistic, 2),
            "-" if row.test is None else p_text(row.test.p),
        )
        for group in groups
        for row in variance_rows(group)
    ]
    return without_empty_columns(
        Table(
            name="variance",
            title="Spread over seeds (Brown-Forsythe test)",
            columns=(
                ("", "group"), ("", "method"), ("deviation", "own"),
                ("deviation", "baseline's"), ("test", "F"), ("test", "p"),
            ),
            rows=tuple(rows),
            is_number=(False, False, True, True, True, True),
        )
    )  # fmt: skip


def relation_table(groups: Sequence[GroupSummary]) -> Table:
    """Rank correlation of cost and final metric, and the Pareto front."""
    rows = []
    for group in groups:
        relation = cost_relation(group)
        number = str(relation.correlation.n)
        rows.append(
            (group.group, number, correlation_text(relation.correlation), ", ".join(relation.front))
        )
    return without_empty_columns(
        Table(
            name="relation",
            title="Training cost and final metric",
            columns=(
                ("", "group"), ("", "schedules"), ("", "rank correlation (95 % interval)"),
                ("", "on the Pareto front"),
            ),
            rows=tuple(rows),
            is_number=(False, True, True, False),
        )
    )  # fmt: skip
