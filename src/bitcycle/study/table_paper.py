"""The table in the paper's shape: ours beside the published values."""

from __future__ import annotations

from collections.abc import Sequence

from bitcycle.study.base import Method
from bitcycle.study.caption import states_text
from bitcycle.study.numbers import DECIMALS, UNITS, cost_text, fixed, summary_text
from bitcycle.study.published import published_relative_cost, published_values
from bitcycle.study.summary import GroupSummary, Row
from bitcycle.study.table_text import Table, without_empty_columns

Cell = tuple[GroupSummary, Row]


def metric_heading(group: GroupSummary) -> str:
    """The metric with its unit."""
    unit = UNITS.get(group.metric, "").strip()
    return f"{group.metric}, {unit}" if unit else group.metric


def paper_table(groups: Sequence[GroupSummary]) -> Table:
    """Rows and columns as published; in each column ours beside the published value."""
    cells: dict[tuple[str, str], list[Cell]] = {}
    for group in groups:
        for row in group.rows:
            cells.setdefault(place_of(row.method.method, group), []).append((group, row))
    lines = list(dict.fromkeys(line for line, _ in cells))
    columns = list(dict.fromkeys(column for _, column in cells))
    body = []
    for line in lines:
        row_cells = [cells.get((line, column), []) for column in columns]
        texts = [text for cell in row_cells for text in (_ours(cell), _theirs(cell))]
        everything = [entry for cell in row_cells for entry in cell]
        body.append((line, *texts, _our_cost(everything), _their_cost(everything)))
    headings = [(column, side) for column in columns for side in ("ours", "published")]
    cost = "training cost"
    has_published = any(_theirs(cell) for cell in cells.values())
    return without_empty_columns(
        Table(
            name="paper",
            title="Ours beside the published values" if has_published else "Results",
            columns=(("", "method"), *headings, (cost, "ours"), (cost, "published")),
            rows=tuple(body),
            is_number=(False, *[True] * (len(headings) + 2)),
        )
    )


def place_of(method: Method, group: GroupSummary) -> tuple[str, str]:
    """(row, column) of a method: the published one, or its label and its group."""
    if method.place is not None:
        return method.place
    return method.label, group.group or metric_heading(group)


def _ours(cell: Sequence[Cell]) -> str:
    return "; ".join(value_text(row) for _, row in cell)


def value_text(row: Row) -> str:
    """Mean and deviation; what became of the runs instead, or beside it, where some lack."""
    undone = states_text(row.method)
    if row.summary is None:
        return undone
    text = summary_text(row.summary)
    return f"{text} ({row.summary.n} of {len(row.method.runs)})" if undone else text


def _theirs(cell: Sequence[Cell]) -> str:
    found = [
        fixed(p.value, DECIMALS)
        for group, row in cell
        for p in published_values(row.method.method, group.metric)
    ]
    return "; ".join(dict.fromkeys(found))


def _our_cost(cells: Sequence[Cell]) -> str:
    found = [cost_text(row.relative_cost) for _, row in cells if row.relative_cost is not None]
    return ", ".join(dict.fromkeys(found))


def _their_cost(cells: Sequence[Cell]) -> str:
    found = []
    for group, row in cells:
        cost = published_relative_cost(row.method.method, baseline_method(group))
        if cost is not None:
            found.append(cost_text(cost))
    return ", ".join(dict.fromkeys(found))


def baseline_method(group: GroupSummary) -> Method | None:
    row = group.baseline_row
    return None if row is None else row.method.method
