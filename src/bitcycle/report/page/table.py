"""The results as a table that sorts by any column, and the runs that are not in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

from bitcycle.report.page.chart import card
from bitcycle.report.page.escape import Html, join, tag
from bitcycle.report.page.looks import Look
from bitcycle.report.page.undone import WORDS
from bitcycle.study.numbers import (
    UNITS,
    bitops_text,
    cost_text,
    difference_text,
    p_text,
    summary_text,
)
from bitcycle.study.statistics import Summary, summarize_values
from bitcycle.study.summary import GroupSummary, Row
from bitcycle.train.result import RunResult

Cell = tuple[object, float | str | None]  # what is shown, and what it is sorted by


@dataclass(frozen=True)
class Column:
    """A heading and the cell of each row; left out when no row has anything."""

    title: str
    cell: Callable[[Row], Cell]
    is_text: bool = False


def results_card(group: GroupSummary) -> Html:
    """One row per method."""
    columns = [c for c in _columns(group) if any(c.cell(row)[1] is not None for row in group.rows)]
    head = tag("tr", *(_heading(column) for column in columns))
    body = [
        tag("tr", *(_cell(column, row, number) for column in columns))
        for number, row in enumerate(group.rows)
    ]
    table = tag("table", tag("thead", head), tag("tbody", *body), class_="sortable")
    note = (
        "Final values, mean ± standard deviation over seeds. Differences are paired by seed, with "
        "their 95 % confidence interval. ◆: on the Pareto front. A click on a heading sorts."
    )
    box = tag("div", table, class_="scroll", tabindex=0)
    return card(f"Final {group.metric}", box, note=note)


def _columns(group: GroupSummary) -> list[Column]:
    metric, base = group.metric, group.baseline
    unit = UNITS.get(metric, "")
    return [
        Column("method", lambda row: (row.label, row.label), is_text=True),
        Column(f"{metric}{unit and ','}{unit}", lambda row: _summary_cell(row.summary)),
        Column("seeds", _seeds_cell),
        Column(f"against {base}", _difference_cell),
        Column("p", _p_cell),
        Column(f"cost, {base} = 1", lambda row: (cost_text(row.relative_cost), row.relative_cost)),
        Column("training cost", lambda row: (bitops_text(row.bitops), row.bitops)),
        Column("best by validation", lambda row: _other_cell(row, lambda r: r.best)),
        Column("averaged weights", lambda row: _other_cell(row, lambda r: r.swa)),
        Column("evaluated at", _precision_cell, is_text=True),
        Column("published", lambda row: _published_cell(row, metric), is_text=True),
        Column("time of a run", _seconds_cell),
    ]


def _heading(column: Column) -> Html:
    button = tag("button", column.title, type="button")
    return tag(
        "th", button, scope="col", aria_sort="none", class_="" if column.is_text else "right"
    )


def _cell(column: Column, row: Row, number: int) -> Html:
    shown, key = column.cell(row)
    if column.title == "method":
        mark = tag("span", " ◆", title="on the Pareto front") if row.is_on_front else None
        return tag(
            "th", Look(number).sample(), " ", shown, mark, _state_badges(row),
            scope="row", data_value=key,
        )  # fmt: skip
    return tag("td", shown, data_value=key, class_="" if column.is_text else "right")


def _state_badges(row: Row) -> Html:
    return join(
        *(
            tag("span", f"{number} {word}", class_=f"badge {state}")
            for state, word in WORDS.items()
            if (number := row.method.count(state))
        )
    )


def _summary_cell(summary: Summary | None) -> Cell:
    return summary_text(summary), None if summary is None else summary.mean


def _seeds_cell(row: Row) -> Cell:
    return ("-", None) if row.summary is None else (row.summary.n, row.summary.n)


def _difference_cell(row: Row) -> Cell:
    mean = None if row.difference is None else row.difference.mean
    return difference_text(row.difference), mean


def _p_cell(row: Row) -> Cell:
    p = None if row.difference is None else row.difference.p
    return p_text(p), p


def _other_cell(row: Row, weights: Callable[[RunResult], dict[str, float] | None]) -> Cell:
    """The metric with other weights than the last, of the runs that have them."""
    found = [
        metrics[result.metric]
        for result in row.method.results.values()
        if (metrics := weights(result)) is not None and result.metric in metrics
    ]
    return _summary_cell(summarize_values(found) if found else None)


def _precision_cell(row: Row) -> Cell:
    found = sorted({result.eval_precision for result in row.method.results.values()})
    return (", ".join(found), found[0]) if found else ("-", None)


def _published_cell(row: Row, metric: str) -> Cell:
    found = [str(number) for number in row.method.method.published if number.metric == metric]
    return ("; ".join(found), found[0]) if found else ("-", None)


def _seconds_cell(row: Row) -> Cell:
    times = [result.seconds for result in row.method.results.values()]
    if not times:
        return "-", None
    seconds = fmean(times)
    if seconds < 120:
        return f"{seconds:.1f} s", seconds
    return (f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"), seconds
