"""A study's result: final value against training cost, critical periods."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Literal

from bitcycle.extras import require
from bitcycle_lab.report import draw
from bitcycle_lab.report.figures import style
from bitcycle_lab.report.figures.labels import label_points
from bitcycle_lab.report.figures.layers import cost_unit
from bitcycle_lab.report.figures.style import DASHED, DOTTED, GREY, INK, Style
from bitcycle_lab.study import number_text as numbers
from bitcycle_lab.study.results import StudyResult
from bitcycle_lab.study.statistics import Summary
from bitcycle_lab.study.summary import (
    GroupSummary,
    MethodSummary,
    cost_correlation,
    metric_title,
    summarize,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Kind = Literal["schedule", "static", "float32"]
Layout = Literal["points", "rows", "joined"]
KINDS: dict[Kind, tuple[str, str, str]] = {  # colour, marker, what it means
    "schedule": ("#D55E00", "D", "bits that change"),
    "static": ("#0072B2", "o", "static bits"),
    "float32": ("#000000", "s", "float32"),
}
_WIDTH, _HEIGHT, _ROW = 7.6, 4.3, 0.27  # inches
_FAR = 4.0  # times the median cost: drawn as a line, because it would squeeze the others
_LOG = 8.0  # costs this many times apart get a logarithmic axis
_MANY = 8  # methods from which on few distinct costs make rows
_CLOSE = 0.03  # costs that differ by less are one


# -- data -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Point:
    """One method at x. number: its place in the group, which decides its colour on the page."""

    number: int
    method: MethodSummary
    x: float

    @property
    def label(self) -> str:
        """The name of the method, to be drawn."""
        return style.plain_text(self.method.label)

    @property
    def kind(self) -> Kind:
        """The kind of its bits."""
        if self.method.method.config.precision.is_float:
            return "float32"
        return "schedule" if self.method.is_scheduled else "static"

    @property
    def summary(self) -> Summary:
        """Mean and 95 % interval of the final values."""
        assert self.method.summary is not None
        return self.method.summary

    @property
    def values(self) -> dict[int, float]:
        """The final value of every seed."""
        return self.method.result.values

    @property
    def bar(self) -> tuple[float, float] | None:
        """How far the interval reaches below and above the mean."""
        mean, low, high = self.summary.mean, self.summary.low, self.summary.high
        return None if low is None or high is None else (mean - low, high - mean)

    @property
    def extent(self) -> list[float]:
        """What the axis must cover: the interval, or the values of fewer than three seeds."""
        mean, low, high = self.summary.mean, self.summary.low, self.summary.high
        if low is None or high is None or len(self.values) < 3:
            return [mean, *self.values.values()]
        return [mean, low, high]

    @property
    def cost(self) -> str:
        """Relative to the baseline, or in BitOPs without one."""
        relative = self.method.relative_cost
        if relative is None:
            return numbers.bitops_text(self.method.bitops)
        return numbers.cost_text(relative)


@dataclass(frozen=True, kw_only=True)
class ValuePanel:
    """The final values of one group, over training cost or over what critical periods vary.

    lines: methods drawn as a line at their mean: the baseline of critical periods, or what costs
    far more than the others. layout: points; rows, where many methods share few costs; or points
    joined by a line, for critical periods.
    """

    title: str
    note: str
    x_title: str
    y_title: str
    points: tuple[Point, ...]
    lines: tuple[Point, ...]
    front: tuple[tuple[float, float], ...]
    log_ticks: tuple[float, ...]  # empty: a linear axis
    y_range: tuple[float, float]
    layout: Layout


def cost_panel(group: GroupSummary, *, is_suite: bool = False) -> ValuePanel:
    """Value against cost. is_suite: the note gives the rank correlation of cost and quality."""
    methods = [point.method for point in _points(group)]
    is_relative = all(each.relative_cost is not None for each in methods)
    size, unit = cost_unit(max((each.bitops or 0.0 for each in methods), default=1.0))
    points = _points(
        group, lambda each: each.relative_cost if is_relative else (each.bitops or 0.0) / size
    )
    layout: Layout = "rows" if is_crowded([point.x for point in points]) else "points"
    border = _FAR * median([point.x for point in points] or [0.0])
    near = [point for point in points if layout == "rows" or point.x <= border]
    costs = [point.x for point in near]
    is_log = layout == "points" and bool(costs) and max(costs) > _LOG * min(costs) > 0
    rho = numbers.correlation_text(cost_correlation(group)) if is_suite else ""
    return _panel(
        group,
        near,
        [point for point in points if point not in near],
        note=f"; rank correlation of cost and quality {rho}" if rho else "",
        x_title=f"training cost: {f'BitOPs, {group.baseline} = 1' if is_relative else unit}",
        front=tuple(
            sorted((point.x, point.summary.mean) for point in near if point.method.is_on_front)
        ),
        log_ticks=_log_ticks(costs) if is_log else (),
        layout=layout,
    )


def period_panel(group: GroupSummary) -> ValuePanel:
    """Value against the length of a deficit or the start of a window, which the methods vary."""
    points = _points(group, lambda each: each.method.at)
    base = [point for point in _points(group) if point.method.label == group.baseline]
    configs = [each.method.config for each in group.methods if each.method.at is not None]
    # longer deficits make longer runs; a window slides through runs of one length
    is_deficit = len({(config.steps, config.epochs) for config in configs}) > 1
    x_title = "length of the deficit, steps" if is_deficit else "start of the window, step"
    points.sort(key=lambda point: point.x)
    return _panel(group, points, base, x_title=x_title, layout="joined")


def _panel(
    group: GroupSummary,
    points: Sequence[Point],
    lines: Sequence[Point],
    *,
    x_title: str,
    layout: Layout,
    note: str = "",
    front: tuple[tuple[float, float], ...] = (),
    log_ticks: tuple[float, ...] = (),
) -> ValuePanel:
    counts = {len(point.values) for point in (*points, *lines)} or {0}
    seeds = style.counted(counts, "seed")
    said = "one seed each" if counts == {1} else f"mean and 95 % interval of {seeds}"
    better = "" if group.higher_is_better else "; lower is better"
    ends = [end for point in points for end in point.extent]
    is_joined = layout == "joined"  # where lines have a band
    ends += [end for each in lines for end in (each.extent if is_joined else [each.summary.mean])]
    if is_joined:  # every seed is drawn
        ends += [value for point in points for value in point.values.values()]
    return ValuePanel(
        title=style.plain_text(group.group),
        note=f"{said}{better}{note}",
        x_title=style.plain_text(x_title),
        y_title=f"test {metric_title(group.metric)}",
        points=tuple(points),
        lines=tuple(lines),
        front=front,
        log_ticks=log_ticks,
        y_range=style.padded(ends or [0.0]),
        layout=layout,
    )


def _points(
    group: GroupSummary, x: Callable[[MethodSummary], float | None] = lambda method: 0.0
) -> list[Point]:
    """The methods with a finite mean, where x is not None."""
    return [
        Point(number=number, method=each, x=at)
        for number, each in enumerate(group.methods)
        if each.summary is not None and each.bitops is not None
        and math.isfinite(each.summary.mean) and (at := x(each)) is not None
    ]  # fmt: skip


def is_crowded(costs: Sequence[float]) -> bool:
    """Whether many methods share few costs.

    >>> is_crowded([1.0] * 8), is_crowded([1.0] * 4), is_crowded(range(1, 9))
    (True, False, False)
    """
    ordered = sorted(costs)
    distinct = 1 + sum(after - before > _CLOSE * after for before, after in pairwise(ordered))
    return len(ordered) >= _MANY and distinct <= len(ordered) / 2


def _log_ticks(costs: Sequence[float]) -> tuple[float, ...]:
    """1, 2 and 5 of every decade; only 1 of many decades."""
    low, high = math.log10(min(costs)), math.log10(max(costs))
    marks = (1, 2, 5) if high - low < 2.5 else (1,)
    powers = range(math.floor(low) - 1, math.ceil(high) + 1)
    return tuple(float(f"{mark}e{power}") for power in powers for mark in marks)


# -- matplotlib -----------------------------------------------------------------------------------


@draw.register(StudyResult)
def draw_study(result: StudyResult) -> Figure:
    """A panel per group: final value against cost, or what a critical-periods study varies."""
    groups = [group for group in summarize(result) if _points(group)]
    if not groups and result.count("done"):
        raise ValueError(
            f"no method of study {result.study.name!r} has a finite value to draw: every mean over "
            "seeds is NaN or infinite"
        )
    if not groups:
        raise ValueError(
            f"study {result.study.name!r} has no finished run to draw; "
            f"start it with: bitcycle study run {result.study.name}"
        )
    is_periods = result.study.kind == "critical-periods"
    is_suite = result.study.kind == "suite"
    panels = [period_panel(g) if is_periods else cost_panel(g, is_suite=is_suite) for g in groups]
    heights = [
        0.9 + _ROW * len(panel.points) if panel.layout == "rows" else _HEIGHT for panel in panels
    ]
    figure = style.new_figure(_WIDTH, 0.5 + sum(heights))
    grid = figure.subplots(len(panels), squeeze=False, height_ratios=heights)[:, 0]
    for axes, panel in zip(grid, panels, strict=True):
        draw_values(axes, panel)
    _add_legend(figure, panels)
    figure.draw_without_rendering()  # labels are placed by the final layout
    for axes, panel in zip(grid, panels, strict=True):
        _label_points(axes, panel)
    return figure


def draw_panel(panel: ValuePanel, width: float) -> Figure:
    """One panel as a figure, a colour for each method."""
    is_rows = panel.layout == "rows"
    figure = style.new_figure(width, 0.9 + _ROW * len(panel.points) if is_rows else 3.8)
    axes = figure.subplots()
    draw_values(axes, replace(panel, title=""), by_method=True)
    figure.draw_without_rendering()
    _label_points(axes, panel)
    return figure


def draw_values(axes: Axes, panel: ValuePanel, *, by_method: bool = False) -> None:
    """Points or rows with their intervals, and the Pareto front. by_method: a colour for each."""
    is_rows = panel.layout == "rows"
    for place, point in enumerate(panel.points):
        color, marker, _ = KINDS[point.kind]
        if by_method:
            color, marker = Style(point.number).color, Style(point.number).marker[0]
        bar = None if point.bar is None else [[point.bar[0]], [point.bar[1]]]
        is_filled = point.method.is_on_front or panel.layout == "joined"
        x, y = (point.summary.mean, place) if is_rows else (point.x, point.summary.mean)
        axes.errorbar(
            x, y, xerr=bar if is_rows else None, yerr=None if is_rows else bar, color=color,
            marker=marker, markersize=8 if is_filled else 7, markeredgewidth=1.4, capsize=3,
            markerfacecolor=color if is_filled else "white", elinewidth=1.0, linestyle="none",
            zorder=3,
        )  # fmt: skip
        if panel.layout == "joined" or (len(point.values) == 2 and not is_rows):
            at = [point.x] * len(point.values)
            axes.plot(at, list(point.values.values()), ".", color=color, alpha=0.5, markersize=5)
    title = "\n".join([*filter(None, [panel.title]), *textwrap.wrap(panel.note, 100)])
    if is_rows:
        style.style_axes(axes, x=f"{panel.y_title}; right: {panel.x_title}", title=title, grid="x")
        _write_rows(axes, panel)
        return
    style.style_axes(axes, x=panel.x_title, y=panel.y_title, title=title)
    for point in panel.lines:
        mean, low, high = point.summary.mean, point.summary.low, point.summary.high
        color = Style(point.number).color if by_method else KINDS[point.kind][0]
        axes.axhline(mean, color=color, linewidth=1.0, linestyle=DOTTED)
        cost = "" if panel.layout == "joined" else f",\ncost {point.cost}"
        _write_right(axes, f"{point.label}{cost}", mean)
        if panel.layout == "joined" and low is not None and high is not None:
            axes.axhspan(low, high, color="#00000014", linewidth=0)
    if len(panel.front) > 1:
        axes.step(
            *zip(*panel.front, strict=True), where="post", color=GREY, linewidth=1.2,
            linestyle=DASHED, zorder=1,
        )  # fmt: skip
    costs = [point.x for point in panel.points]
    axes.set_ylim(*panel.y_range)
    if panel.layout == "joined":
        axes.plot(costs, [point.summary.mean for point in panel.points], color=GREY, linewidth=1.2)
    elif panel.log_ticks:
        axes.set_xscale("log")
        axes.set_xticks(panel.log_ticks, [f"{tick:g}" for tick in panel.log_ticks])
        axes.minorticks_off()
        axes.set_xlim(min(costs) / 1.3, max(costs) * 1.3)
    else:
        axes.margins(x=0.2)


def _write_rows(axes: Axes, panel: ValuePanel) -> None:
    """The methods from the top in the study's order, each with its cost at the end of the row."""
    axes.set_yticks(range(len(panel.points)), [point.label for point in panel.points])
    axes.set_ylim(len(panel.points) - 0.4, -0.6)
    axes.set_xlim(*panel.y_range)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0, labelsize=8)
    _write_right(axes, "cost", -0.9)
    for height, point in enumerate(panel.points):
        _write_right(axes, point.cost, height)


def _write_right(axes: Axes, text: str, height: float) -> None:
    """Write text at the right of the panel."""
    axes.annotate(
        text, (1, height), xycoords=("axes fraction", "data"), xytext=(5, 0), va="center",
        textcoords="offset points", fontsize=8, color=INK, annotation_clip=False,
    )  # fmt: skip


def _label_points(axes: Axes, panel: ValuePanel) -> None:
    """Label the points, clear of intervals and lines, once the figure is laid out."""
    if panel.layout != "points":
        return
    left, right = axes.get_xlim()
    spans = [(start, mean, end) for (start, mean), (end, _) in pairwise(panel.front)]
    spans += [(left, point.summary.mean, right) for point in panel.lines]
    label_points(
        axes,
        [(point.x, point.summary.mean) for point in panel.points],
        [point.label for point in panel.points],
        bars=[(point.x, min(point.extent), max(point.extent)) for point in panel.points],
        spans=spans,
    )


def _add_legend(figure: Figure, panels: Sequence[ValuePanel]) -> None:
    """The kinds of methods that are drawn, and how the Pareto front is marked."""
    lines = require("matplotlib.lines", extra="report", purpose="pictures")
    drawn = {point.kind for panel in panels for point in panel.points}
    has_front = any(panel.front for panel in panels)
    marks = [
        (*mark, "white" if has_front else mark[0]) for kind, mark in KINDS.items() if kind in drawn
    ]
    if has_front:
        marks.append((GREY, "o", "filled: on the Pareto front, by mean", GREY))
    handles = [
        lines.Line2D([], [], color=color, marker=marker, markerfacecolor=face, markersize=7,
                     linestyle="none", label=label)
        for color, marker, label, face in marks
    ]  # fmt: skip
    if any(len(panel.front) > 1 and panel.layout == "points" for panel in panels):
        handles.append(lines.Line2D([], [], color=GREY, linestyle=DASHED, label="front"))
    figure.legend(
        handles=handles, loc="outside lower center", frameon=False, ncols=len(handles),
        fontsize=8.5, labelcolor=INK, handletextpad=0.4, columnspacing=1.4,
    )  # fmt: skip
