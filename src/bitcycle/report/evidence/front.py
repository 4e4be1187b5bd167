"""Final value against training cost of every method, named, with intervals and the Pareto front.

Orange: bits that change; blue: static bits; filled: on the front. What costs several times as much
as the baseline would squeeze the others: it is a dotted line at its mean.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bitcycle.extras import require
from bitcycle.report.labels import label_points
from bitcycle.report.study_look import FRONT, INK, PLAIN, name_axes
from bitcycle.study.numbers import correlation_text, cost_text
from bitcycle.study.relations import cost_relation
from bitcycle.study.results import StudyResult
from bitcycle.study.summary import GroupSummary, Row, summarize

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GREY = "#999999"
_MOST_COST = 4.0
_POINTS = 12  # of a line, when a place for a name is sought
_WIDTH, _HEIGHT = 7.6, 4.3


def draw_front(result: StudyResult) -> Figure:
    """A panel per group that has something done."""
    groups = [group for group in summarize(result) if group.done]
    module = require("matplotlib.figure", extra="report", purpose="pictures")
    figure: Figure = module.Figure(
        figsize=(_WIDTH, 0.5 + _HEIGHT * len(groups)), layout="constrained"
    )
    grid = figure.subplots(len(groups), 1, squeeze=False)
    for (axes,), group in zip(grid, groups, strict=True):
        _draw(axes, group, is_suite=result.study.kind == "suite")
    figure.legend(
        handles=_handles(), loc="outside lower center", frameon=False, ncols=4, fontsize=8.5,
        labelcolor=INK, handletextpad=0.4, columnspacing=1.4,
    )  # fmt: skip
    figure.draw_without_rendering()  # names are placed by what lies where
    for (axes,), group in zip(grid, groups, strict=True):
        _name(axes, group)
    return figure


def _draw(axes: Axes, group: GroupSummary, *, is_suite: bool) -> None:
    shown, far = _near(group), [row for row in group.done if row not in _near(group)]
    ends: list[float] = []
    for row in shown:
        assert row.summary is not None
        colour = colour_of(row)
        axes.errorbar(
            _cost(row), row.summary.mean, yerr=_bar(row), color=colour, marker=marker_of(row),
            markersize=8 if row.is_on_front else 7, markeredgewidth=1.4, capsize=3, elinewidth=1.0,
            markerfacecolor=colour if row.is_on_front else "white", linestyle="none", zorder=3,
        )  # fmt: skip
        ends += [row.summary.mean, *(_ends(row) or ())]
    for row in far:
        assert row.summary is not None
        axes.axhline(row.summary.mean, color="#000000", linewidth=1.0, linestyle=(0, (1, 2)))
        axes.annotate(
            f"{row.label},\ncost {cost_text(row.relative_cost)}", (1, row.summary.mean),
            xycoords=("axes fraction", "data"), xytext=(4, 0), textcoords="offset points",
            va="center", fontsize=8, color=INK, annotation_clip=False,
        )  # fmt: skip
        ends.append(row.summary.mean)
    _draw_front_line(axes, shown)
    room = 0.1 * (max(ends) - min(ends)) or 0.5
    axes.set_ylim(min(ends) - room, max(ends) + room)
    axes.margins(x=0.2)
    _dress(axes, group, is_suite=is_suite)


def _draw_front_line(axes: Axes, rows: Sequence[Row]) -> None:
    front = _front_points(rows)
    if len(front) > 1:
        costs, means = zip(*front, strict=True)
        axes.step(
            costs, means, where="post", color=_GREY, linewidth=1.2, linestyle=(0, (4, 3)), zorder=1
        )


def _front_points(rows: Sequence[Row]) -> list[tuple[float, float]]:
    return sorted(
        (_cost(row), row.summary.mean)
        for row in rows
        if row.is_on_front and row.summary is not None
    )


def _lines(group: GroupSummary, axes: Axes) -> list[tuple[float, float, float]]:
    """What lies across the panel, as a row of points that names should not cover."""
    front = _front_points(_near(group))
    spans = [(*pair[0], pair[1][0]) for pair in zip(front, front[1:], strict=False)]
    left, right = axes.get_xlim()
    spans += [(left, row.summary.mean, right) for row in group.done
              if row not in _near(group) and row.summary is not None]  # fmt: skip
    return [
        (start + (end - start) * k / _POINTS, height, height)
        for start, height, end in spans
        for k in range(_POINTS + 1)
    ]


def _dress(axes: Axes, group: GroupSummary, *, is_suite: bool) -> None:
    counts = sorted({row.summary.n for row in group.done if row.summary is not None})
    number = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    small = "one seed each" if counts == [1] else f"mean and 95 % interval of {number} seeds"
    if is_suite:
        relation = cost_relation(group).correlation
        small += f"; rank correlation of cost and value {correlation_text(relation)}"
    title = [group.group, *textwrap.wrap(small, 100)]
    axes.set_title("\n".join(filter(None, title)), loc="left", fontsize=9, color=INK)
    name_axes(axes, group)


def _name(axes: Axes, group: GroupSummary) -> None:
    rows = [row for row in _near(group) if row.summary is not None]
    points = [(_cost(row), row.summary.mean) for row in rows if row.summary is not None]
    bars = [(_cost(row), *ends) for row in rows if (ends := _ends(row)) is not None]
    bars += _lines(group, axes)
    label_points(axes, points, [row.label for row in rows], bars=bars, size=8)


def _handles() -> list[object]:
    lines = require("matplotlib.lines", extra="report", purpose="pictures")

    def mark(colour: str, marker: str, face: str, label: str) -> object:
        return lines.Line2D([], [], color=colour, marker=marker, markerfacecolor=face,
                            markersize=7, linestyle="none", label=label)  # fmt: skip

    return [
        mark(FRONT, "D", "white", "bits that change"),
        mark(PLAIN, "o", "white", "static bits"),
        mark(_GREY, "s", _GREY, "filled: on the front"),
        lines.Line2D([], [], color=_GREY, linestyle=(0, (4, 3)), label="Pareto front, by mean"),
    ]


def colour_of(row: Row) -> str:
    """By whether its bits change."""
    if row.method.method.config.precision.is_float:
        return "#000000"
    return FRONT if row.is_scheduled else PLAIN


def marker_of(row: Row) -> str:
    """The same without colour."""
    if row.method.method.config.precision.is_float:
        return "s"
    return "D" if row.is_scheduled else "o"


def _near(group: GroupSummary) -> list[Row]:
    """What is drawn at its cost; all of it where there is no baseline."""
    return [row for row in group.done if (row.relative_cost or 0) <= _MOST_COST]


def _cost(row: Row) -> float:
    return float(row.relative_cost if row.relative_cost is not None else row.bitops or 0.0)


def _ends(row: Row) -> tuple[float, float] | None:
    """Of the interval; those of two seeds are so long that they may leave the panel."""
    summary = row.summary
    if summary is None or summary.low is None or summary.high is None or summary.n < 3:
        return None
    return summary.low, summary.high


def _bar(row: Row) -> list[list[float]] | None:
    summary = row.summary
    if summary is None or summary.low is None or summary.high is None:
        return None
    return [[summary.mean - summary.low], [summary.high - summary.mean]]
