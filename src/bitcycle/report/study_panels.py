"""The panels of a study's picture; each draws one group."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bitcycle.extras import require
from bitcycle.report.labels import label_points
from bitcycle.report.study_look import INK, PLAIN, Look, name_axes
from bitcycle.study.numbers import correlation_text, cost_text, p_sentence
from bitcycle.study.relations import cost_relation, variance_rows
from bitcycle.study.summary import GroupSummary, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GREY = "#999999"
_MOST_COST = 4.0
_NARROW, _WIDE = 62, 100  # characters of a title


def draw_cost(axes: Axes, group: GroupSummary, look: Look) -> None:
    """Metric against training cost, with the Pareto front."""
    _draw_points(axes, group, group.done, look)
    _dress(axes, group, "Final value against cost", _said(group.done))


def draw_relation(axes: Axes, group: GroupSummary, look: Look) -> None:
    """The same for a suite: every schedule by its name, with the rank correlation.

    What costs more than four times the baseline is left out, and named.
    """
    shown = _affordable(group)
    left_out = [row for row in group.done if row not in shown]
    _draw_points(axes, group, shown, Look())
    correlation = cost_relation(group).correlation
    said = f"Rank correlation {correlation_text(correlation)}, {correlation.n} schedules"
    names = [f"{row.label} (cost {cost_text(row.relative_cost)})" for row in left_out]
    more = [f"not drawn: {', '.join(names)}"] if names else []
    _dress(
        axes, group, said, "; ".join([_said(shown), "diamonds: Pareto front", *more]), width=_WIDE
    )


def _affordable(group: GroupSummary) -> list[Row]:
    return [row for row in group.done if (row.relative_cost or 0) <= _MOST_COST]


def draw_names(axes: Axes, group: GroupSummary, *, is_suite: bool) -> None:
    """Names beside the points of `draw_cost` or `draw_relation`; after the figure is laid out."""
    placed = [
        (cost, row.summary, row.label)
        for row in (_affordable(group) if is_suite else group.done)
        if row.summary is not None and (cost := _cost(row)) is not None
    ]
    bars = [
        (cost, summary.low, summary.high)
        for cost, summary, _ in placed
        if summary.low is not None and summary.high is not None
    ]
    points = [(cost, summary.mean) for cost, summary, _ in placed]
    label_points(axes, points, [label for _, _, label in placed], bars=bars)


def _draw_points(axes: Axes, group: GroupSummary, rows: Sequence[Row], look: Look) -> None:
    ends: list[float] = []
    costs: list[float] = []
    for row in rows:
        cost, summary = _cost(row), row.summary
        if cost is None or summary is None:
            continue
        values = list(row.method.values.values())
        if look.labels:  # a suite has too many
            _draw_seeds(axes, cost, values, look.colour(row))
        axes.errorbar(
            cost, summary.mean, yerr=_bar(row), color=look.colour(row), marker=look.marker(row),
            markersize=7, capsize=3, linestyle="none", label=row.label, elinewidth=1.0,
        )  # fmt: skip
        ends += [*(values if look.labels else [summary.mean]), *_ends(row)]
        costs.append(cost)
    _draw_front(axes, rows)
    _fit(axes, ends, costs)


def _draw_seeds(axes: Axes, at: float, values: Sequence[float], colour: str) -> None:
    """Every seed, a little left of the mean and its bar."""
    transforms = require("matplotlib.transforms", extra="report", purpose="pictures")
    beside = transforms.offset_copy(axes.transData, fig=axes.figure, x=-7, units="points")
    axes.scatter(
        [at] * len(values), values, s=11, color=colour, alpha=0.5, linewidths=0, transform=beside
    )


def _draw_front(axes: Axes, rows: Sequence[Row]) -> None:
    front = sorted(
        (cost, row.summary.mean)
        for row in rows
        if row.is_on_front and row.summary is not None and (cost := _cost(row)) is not None
    )
    if len(front) > 1:
        costs, means = zip(*front, strict=True)
        axes.step(
            costs, means, where="post", color=_GREY, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1
        )


def _fit(axes: Axes, values: Sequence[float], costs: Sequence[float]) -> None:
    """Limits; bars of two seeds, which are very long, may leave the panel."""
    if costs and max(costs) > 4 * min(costs):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda cost, _: f"{cost:g}")
        axes.minorticks_off()
    axes.margins(x=0.12)
    room = 0.08 * (max(values) - min(values)) or 0.5
    axes.set_ylim(min(values) - room, max(values) + room)


def draw_spread(axes: Axes, group: GroupSummary, look: Look) -> None:
    """Every seed of each method, from three on with a box; p against the baseline."""
    tests = {row.label: row.test for row in variance_rows(group)}
    values = [list(row.method.values.values()) for row in group.done]
    places = list(range(1, len(values) + 1))
    boxed = [i for i, seeds in enumerate(values) if len(seeds) >= 3]
    boxes = axes.boxplot(
        [values[i] for i in boxed], positions=[places[i] for i in boxed], widths=0.5,
        whis=(0, 100), showfliers=False, patch_artist=True,
        medianprops={"color": INK}, whiskerprops={"color": _GREY}, capprops={"color": _GREY},
    )  # fmt: skip
    for box, i in zip(boxes["boxes"], boxed, strict=True):
        colour = look.colour(group.done[i])
        box.set(facecolor=f"{colour}30", edgecolor=colour)
    names = []
    for row, place, seeds in zip(group.done, places, values, strict=True):
        axes.scatter(
            [place] * len(seeds), seeds, s=14, color=look.colour(row), zorder=3, linewidths=0
        )
        test = tests.get(row.label)
        p = "" if test is None else f"\n{p_sentence(test.p)}"
        names.append(f"{row.label.replace(' ', chr(10), 1)}{p}")
    axes.set_xticks(places, names)
    axes.set_xlim(0.5, len(places) + 0.5)
    axes.margins(y=0.12)
    _dress(
        axes, group, "Spread over seeds", "boxes: quartiles; p: Brown-Forsythe against the baseline"
    )
    axes.set_xlabel("")
    axes.tick_params(axis="x", labelsize=8)


def draw_periods(axes: Axes, group: GroupSummary, look: Look) -> None:
    """Metric against the length of a deficit or the start of a window."""
    rows = sorted(
        (row.method.method.at, i, row)
        for i, row in enumerate(group.done)
        if row.method.method.at is not None
    )
    ends: list[float] = []
    for at, _, row in rows:
        assert row.summary is not None
        values = list(row.method.values.values())
        _draw_seeds(axes, at, values, PLAIN)
        axes.errorbar(
            at, row.summary.mean, yerr=_bar(row), color=PLAIN, marker="o", markersize=6,
            capsize=3, linestyle="none", elinewidth=1.2,
        )  # fmt: skip
        ends += [*values, *_ends(row)]
    means = [row.summary.mean for _, _, row in rows if row.summary is not None]
    axes.plot([at for at, _, _ in rows], means, color=PLAIN, linewidth=1.2)
    base = group.baseline_row
    if base is not None and base.summary is not None:
        axes.axhline(base.summary.mean, color=INK, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
        if base.summary.low is not None and base.summary.high is not None:
            axes.axhspan(base.summary.low, base.summary.high, color="#00000014", linewidth=0)
        ends += [base.summary.mean, *_ends(base)]
    _fit(axes, ends or [0.0], [])
    said = "" if base is None else f"dashed: {group.baseline}"
    small = "; ".join(filter(None, [_said(group.done), said]))
    _dress(axes, group, "Final value", small, width=_WIDE)
    axes.set_xlabel(period_label(group), color=INK)


def period_label(group: GroupSummary) -> str:
    """Longer deficits make longer runs; a window slides through runs of one length."""
    configs = [r.method.method.config for r in group.rows if r.method.method.at is not None]
    lengths = {(config.steps, config.epochs) for config in configs}
    return "length of the deficit, steps" if len(lengths) > 1 else "start of the window, step"


# -- what panels share --------------------------------------------------------------------------


def _cost(row: Row) -> float | None:
    return row.relative_cost if row.relative_cost is not None else row.bitops


def _ends(row: Row) -> list[float]:
    """Of the interval, unless it is one of two seeds."""
    summary = row.summary
    if summary is None or summary.low is None or summary.high is None or summary.n < 3:
        return []
    return [summary.low, summary.high]


def _bar(row: Row) -> list[list[float]] | None:
    summary = row.summary
    if summary is None or summary.low is None or summary.high is None:
        return None
    return [[summary.mean - summary.low], [summary.high - summary.mean]]


def _said(rows: Sequence[Row]) -> str:
    counts = sorted({row.summary.n for row in rows if row.summary is not None})
    if counts == [1]:
        return "one seed each"
    number = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"mean and 95 % interval of {number} seeds"


def _dress(
    axes: Axes, group: GroupSummary, title: str, small: str, *, width: int = _NARROW
) -> None:
    lines = [line for text in (group.group, title, small) for line in textwrap.wrap(text, width)]
    axes.set_title("\n".join(lines), loc="left", fontsize=9, color=INK)
    name_axes(axes, group)
