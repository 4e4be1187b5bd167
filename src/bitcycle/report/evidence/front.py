"""Final value against training cost of every method, named, with intervals and the Pareto front.

Orange: bits that change; blue: static bits; filled: on the front. What costs several times as much
as the baseline would squeeze the others: it is a dotted line at its mean. Where many methods cost
the same they are rows instead.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bitcycle.extras import require
from bitcycle.report.evidence.rows import ROW, draw_rows, finite, is_crowded
from bitcycle.report.labels import label_points
from bitcycle.report.study_look import FRONT, INK, PLAIN, name_axes
from bitcycle.study.numbers import correlation_text, cost_text
from bitcycle.study.relations import cost_relation
from bitcycle.study.results import StudyResult
from bitcycle.study.summary import GroupSummary, Row, summarize

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GREY, _INK = "#999999", "#000000"
_MOST_COST = 4.0
_POINTS = 12  # of a line, when a place for a name is sought
_WIDTH, _HEIGHT = 7.6, 4.3


def draw_front(result: StudyResult) -> Figure:
    """A panel per group that has something to draw."""
    groups = [group for group in summarize(result) if finite(group.done)]
    has_rows = is_crowded(groups)
    heights = [_HEIGHT if not has_rows else 0.9 + ROW * len(finite(group.done)) for group in groups]
    module = require("matplotlib.figure", extra="report", purpose="pictures")
    figure: Figure = module.Figure(figsize=(_WIDTH, 0.5 + sum(heights)), layout="constrained")
    grid = figure.subplots(len(groups), 1, squeeze=False, height_ratios=heights)
    for (axes,), group in zip(grid, groups, strict=True):
        if has_rows:
            _draw_rows(axes, group)
        else:
            _draw(axes, group)
        _title(axes, group, is_suite=result.study.kind == "suite")
    figure.legend(
        handles=_handles(groups, has_line=not has_rows), loc="outside lower center", frameon=False,
        ncols=5, fontsize=8.5, labelcolor=INK, handletextpad=0.4, columnspacing=1.4,
    )  # fmt: skip
    if not has_rows:
        figure.draw_without_rendering()  # names are placed by what lies where
        for (axes,), group in zip(grid, groups, strict=True):
            _name(axes, group)
    return figure


def _draw_rows(axes: Axes, group: GroupSummary) -> None:
    rows = finite(group.done)
    ends: list[float] = []
    for height, row in enumerate(rows):
        assert row.summary is not None
        axes.errorbar(row.summary.mean, height, xerr=_bar(row), **_look(row))
        ends += [row.summary.mean, *(_ends(row) or ())]
    axes.set_xlim(*_with_room(ends))
    draw_rows(axes, group, rows)


def _with_room(ends: Sequence[float]) -> tuple[float, float]:
    room = 0.1 * (max(ends) - min(ends)) or 0.5
    return min(ends) - room, max(ends) + room


def _look(row: Row) -> dict[str, Any]:
    """Of a point with its interval."""
    colour = colour_of(row)
    return {
        "color": colour, "marker": marker_of(row), "markersize": 8 if row.is_on_front else 7,
        "markeredgewidth": 1.4, "capsize": 3, "elinewidth": 1.0, "linestyle": "none", "zorder": 3,
        "markerfacecolor": colour if row.is_on_front else "white",
    }  # fmt: skip


def _draw(axes: Axes, group: GroupSummary) -> None:
    shown, far = _near(group), _far(group)
    ends: list[float] = []
    for row in shown:
        assert row.summary is not None
        axes.errorbar(_cost(row), row.summary.mean, yerr=_bar(row), **_look(row))
        ends += [row.summary.mean, *(_ends(row) or ())]
    for row in far:
        assert row.summary is not None
        axes.axhline(row.summary.mean, color=_INK, linewidth=1.0, linestyle=(0, (1, 2)))
        axes.annotate(
            f"{row.label},\ncost {cost_text(row.relative_cost)}", (1, row.summary.mean),
            xycoords=("axes fraction", "data"), xytext=(4, 0), textcoords="offset points",
            va="center", fontsize=8, color=INK, annotation_clip=False,
        )  # fmt: skip
        ends.append(row.summary.mean)
    _draw_front_line(axes, shown)
    axes.set_ylim(*_with_room(ends))
    axes.margins(x=0.2)
    name_axes(axes, group)


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
    spans += [(left, row.summary.mean, right) for row in _far(group) if row.summary is not None]
    return [
        (start + (end - start) * k / _POINTS, height, height)
        for start, height, end in spans
        for k in range(_POINTS + 1)
    ]


def _title(axes: Axes, group: GroupSummary, *, is_suite: bool) -> None:
    counts = sorted({row.summary.n for row in group.done if row.summary is not None})
    number = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    small = "one seed each" if counts == [1] else f"mean and 95 % interval of {number} seeds"
    if not group.higher_is_better:
        small += "; lower is better"
    if is_suite:
        relation = cost_relation(group).correlation
        small += f"; rank correlation of cost and quality {correlation_text(relation)}"
    title = [group.group, *textwrap.wrap(small, 100)]
    axes.set_title("\n".join(filter(None, title)), loc="left", fontsize=9, color=INK)


def _name(axes: Axes, group: GroupSummary) -> None:
    rows = [row for row in _near(group) if row.summary is not None]
    points = [(_cost(row), row.summary.mean) for row in rows if row.summary is not None]
    bars = [(_cost(row), *ends) for row in rows if (ends := _ends(row)) is not None]
    bars += _lines(group, axes)
    label_points(axes, points, [row.label for row in rows], bars=bars, size=8)


def _handles(groups: Sequence[GroupSummary], *, has_line: bool) -> list[object]:
    """Of what is in the picture."""
    lines = require("matplotlib.lines", extra="report", purpose="pictures")
    drawn = [row for group in groups for row in (_near(group) if has_line else finite(group.done))]
    seen = {marker_of(row) for row in drawn}

    def mark(colour: str, marker: str, face: str, label: str) -> object:
        return lines.Line2D([], [], color=colour, marker=marker, markerfacecolor=face,
                            markersize=7, linestyle="none", label=label)  # fmt: skip

    kinds = ((FRONT, "D", "bits that change"), (PLAIN, "o", "static bits"), (_INK, "s", "float32"))
    found = [mark(colour, sign, "white", text) for colour, sign, text in kinds if sign in seen]
    found.append(mark(_GREY, "o", _GREY, "filled: on the Pareto front, by mean"))
    if has_line and any(len(_front_points(_near(group))) > 1 for group in groups):
        found.append(lines.Line2D([], [], color=_GREY, linestyle=(0, (4, 3)), label="front"))
    return found


def colour_of(row: Row) -> str:
    """By whether its bits change."""
    if row.method.method.config.precision.is_float:
        return _INK
    return FRONT if row.is_scheduled else PLAIN


def marker_of(row: Row) -> str:
    """The same without colour."""
    if row.method.method.config.precision.is_float:
        return "s"
    return "D" if row.is_scheduled else "o"


def _near(group: GroupSummary) -> list[Row]:
    """What is drawn at its cost; all of it where there is no baseline."""
    return [row for row in finite(group.done) if (row.relative_cost or 0) <= _MOST_COST]


def _far(group: GroupSummary) -> list[Row]:
    return [row for row in finite(group.done) if (row.relative_cost or 0) > _MOST_COST]


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
