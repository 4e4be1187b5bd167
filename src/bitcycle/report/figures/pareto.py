"""A study's result: final value against training cost, spread over seeds, critical periods."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from bitcycle.extras import require
from bitcycle.report import draw
from bitcycle.report.figures.labels import label_points
from bitcycle.report.figures.layers import cost_unit
from bitcycle.report.figures.schedules import BitsLine, BitsPanel, bits_axis, draw_bits
from bitcycle.report.figures.style import (
    DASHED,
    DOTTED,
    GREY,
    INK,
    Chart,
    Style,
    axis,
    chart,
    counted,
    finish,
    line,
    new_figure,
    padded,
    plain_text,
)
from bitcycle.report.runs import segments
from bitcycle.schedules import parse_schedule
from bitcycle.study.demo import DemoResult
from bitcycle.study.numbers import (
    UNITS,
    bitops_text,
    correlation_text,
    cost_text,
    p_sentence,
    summary_text,
)
from bitcycle.study.relations import cost_relation, variance_rows
from bitcycle.study.results import StudyResult
from bitcycle.study.statistics import Summary, pareto_front, summarize_values
from bitcycle.study.summary import GroupSummary, Row, summarize

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Kind = Literal["schedule", "static", "float32"]
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
_MOST_BOXES = 12


# -- data -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Point:
    """One method: the mean final value with its 95 % interval, at x.

    number: its place in the group, which decides its colour on the page. values: of every seed.
    """

    key: str
    label: str
    number: int
    kind: Kind
    x: float
    mean: float
    low: float | None
    high: float | None
    values: tuple[tuple[int, float], ...]
    is_on_front: bool
    cost: str
    bitops: str
    summary: str

    @property
    def bar(self) -> tuple[float, float] | None:
        """How far the interval reaches below and above the mean."""
        if self.low is None or self.high is None:
            return None
        return self.mean - self.low, self.high - self.mean

    @property
    def extent(self) -> list[float]:
        """What must be visible; the interval of two seeds, often very long, may leave the panel."""
        if self.low is None or self.high is None or len(self.values) < 3:
            return [self.mean]
        return [self.mean, self.low, self.high]


@dataclass(frozen=True, kw_only=True)
class CostPanel:
    """Final value against cost in one group.

    lines: methods that cost far more than the others, drawn as a line at their mean. has_rows:
    many methods share few costs, so that a row each is more legible than points.
    """

    title: str
    note: str
    x_title: str
    y_title: str
    points: tuple[Point, ...]
    lines: tuple[Point, ...]
    front: tuple[tuple[float, float], ...]
    is_log: bool
    ticks: tuple[float, ...]
    y_range: tuple[float, float]
    has_rows: bool


@dataclass(frozen=True, kw_only=True)
class SpreadPanel:
    """The values of all seeds. labels: the method's name with p against the baseline."""

    title: str
    note: str
    y_title: str
    points: tuple[Point, ...]
    labels: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PeriodPanel:
    """Final value against the length of a deficit or the start of a window."""

    title: str
    note: str
    x_title: str
    y_title: str
    points: tuple[Point, ...]
    baseline: Point | None
    y_range: tuple[float, float]


def cost_panel(group: GroupSummary, *, is_suite: bool = False) -> CostPanel:
    """The panel of a group. is_suite: the note gives the rank correlation of cost and quality."""
    rows = [(number, row) for number, row in enumerate(group.rows) if _is_drawable(row)]
    is_relative = all(row.relative_cost is not None for _, row in rows)
    size, unit = cost_unit(max((row.bitops or 0.0 for _, row in rows), default=1.0))
    cost = f"BitOPs, {group.baseline} = 1" if is_relative else unit
    points = [
        _point(number, row, row.relative_cost if is_relative else (row.bitops or 0.0) / size)
        for number, row in rows
    ]
    note = _note(group, points)
    if is_suite:
        relation = cost_relation(group).correlation
        note += f"; rank correlation of cost and quality {correlation_text(relation)}"
    return _cost_panel(points, title=group.group, note=note, cost=cost, y_title=_value_title(group))


def _cost_panel(
    points: Sequence[Point], *, title: str, note: str, cost: str, y_title: str
) -> CostPanel:
    has_rows = is_crowded([point.x for point in points])
    border = _FAR * median([point.x for point in points]) if points else 0.0
    near = [point for point in points if has_rows or point.x <= border]
    costs = [point.x for point in near]
    is_log = not has_rows and bool(costs) and max(costs) > _LOG * min(costs) > 0
    ends = [value for point in near for value in point.extent]
    far = [point for point in points if point not in near]
    return CostPanel(
        title=title,
        note=note,
        x_title=f"training cost: {cost}",
        y_title=y_title,
        points=tuple(near),
        lines=tuple(far),
        front=tuple(sorted((p.x, p.mean) for p in near if p.is_on_front)),
        is_log=is_log,
        ticks=_log_ticks(costs) if is_log else (),
        y_range=padded([*ends, *(point.mean for point in far)] or [0.0]),
        has_rows=has_rows,
    )


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


def spread_panel(group: GroupSummary) -> SpreadPanel:
    """The panel of a group; p of the Brown-Forsythe test of equal variances."""
    tests = {row.label: row.test for row in variance_rows(group)}
    rows = [(number, row) for number, row in enumerate(group.rows) if _is_drawable(row)]
    p = [p_sentence(test.p) if (test := tests.get(row.label)) else "" for _, row in rows]
    names = [textwrap.fill(row.label, 12, break_long_words=False) for _, row in rows]
    return SpreadPanel(
        title="Spread over seeds",
        note="boxes: quartiles; p: Brown-Forsythe against the baseline",
        y_title=_value_title(group),
        points=tuple(_point(number, row, place) for place, (number, row) in enumerate(rows, 1)),
        labels=tuple(f"{name}\n{found}".strip() for name, found in zip(names, p, strict=True)),
    )


def period_panel(group: GroupSummary) -> PeriodPanel:
    """The panel of a group; its methods vary `at`."""
    varied = [
        _point(number, row, row.method.method.at)
        for number, row in enumerate(group.rows)
        if _is_drawable(row) and row.method.method.at is not None
    ]
    base = group.baseline_row
    baseline = _point(0, base, 0.0) if base is not None and _is_drawable(base) else None
    configs = [row.method.method.config for row in group.rows if row.method.method.at is not None]
    # longer deficits make longer runs; a window slides through runs of one length
    is_deficit = len({(config.steps, config.epochs) for config in configs}) > 1
    drawn = [*varied, *([baseline] if baseline else [])]
    values = [value for point in varied for _, value in point.values]
    said = "" if baseline is None else f"; dashed: {group.baseline}"
    return PeriodPanel(
        title=group.group,
        note=f"{_note(group, drawn)}{said}",
        x_title="length of the deficit, steps" if is_deficit else "start of the window, step",
        y_title=_value_title(group),
        points=tuple(sorted(varied, key=lambda point: point.x)),
        baseline=baseline,
        y_range=padded([*values, *(end for point in drawn for end in point.extent)] or [0.0]),
    )


def _is_drawable(row: Row) -> bool:
    return row.summary is not None and row.bitops is not None and math.isfinite(row.summary.mean)


def _point(number: int, row: Row, x: float | None) -> Point:
    config = row.method.method.config
    kind: Kind = "schedule" if row.is_scheduled else "static"
    bitops = bitops_text(row.bitops)
    assert row.summary is not None
    return _summarized(
        row.summary,
        key=row.method.method.key,
        label=row.label,
        number=number,
        kind="float32" if config.precision.is_float else kind,
        x=x or 0.0,
        values=tuple(row.method.values.items()),
        is_on_front=row.is_on_front,
        cost=bitops if row.relative_cost is None else cost_text(row.relative_cost),
        bitops=bitops,
    )


def _summarized(summary: Summary, **given: Any) -> Point:
    text = f"{summary_text(summary)} (n = {summary.n})"
    return Point(mean=summary.mean, low=summary.low, high=summary.high, summary=text, **given)


def _note(group: GroupSummary, points: Iterable[Point]) -> str:
    better = "" if group.higher_is_better else "; lower is better"
    return f"{_seeds_note(points)}{better}"


def _seeds_note(points: Iterable[Point]) -> str:
    counts = {len(point.values) for point in points} or {0}
    seeds = counted(counts, "seed")
    return "one seed each" if counts == {1} else f"mean and 95 % interval of {seeds}"


def _value_title(group: GroupSummary) -> str:
    unit = UNITS.get(group.metric, "").strip()
    return f"test {group.metric}{f', {unit}' if unit else ''}"


# -- matplotlib -----------------------------------------------------------------------------------


@draw.register(StudyResult)
def draw_study(result: StudyResult, *, spread: bool = False) -> Figure:
    """A panel per group: final value against cost, or against what a critical-periods study varies.

    spread: beside it the values of all seeds, if two methods have three or more.
    """
    groups = [group for group in summarize(result) if any(map(_is_drawable, group.rows))]
    if not groups:
        raise ValueError(
            f"study {result.study.name!r} has no finished run to draw; "
            f"start it with: bitcycle study run {result.study.name}"
        )
    if result.study.kind == "critical-periods":
        return _draw_periods([period_panel(group) for group in groups])
    panels = [cost_panel(group, is_suite=result.study.kind == "suite") for group in groups]
    spreads = [spread_panel(group) for group in groups] if spread and _has_spread(groups) else []
    heights = [0.9 + _ROW * len(p.points) if p.has_rows else _HEIGHT for p in panels]
    if spreads:
        heights = [max(height, _HEIGHT) for height in heights]
    figure = new_figure(_WIDTH + 5.4 * bool(spreads), 0.5 + sum(heights))
    grid = figure.subplots(len(panels), 1 + bool(spreads), squeeze=False, height_ratios=heights)
    for (axes, *_), panel in zip(grid, panels, strict=True):
        draw_cost(axes, panel)
    for (_, axes), spread_data in zip(grid if spreads else [], spreads, strict=True):
        _draw_spread(axes, spread_data)
    _add_legend(figure, panels)
    figure.draw_without_rendering()  # names are placed by what lies where
    for (axes, *_), panel in zip(grid, panels, strict=True):
        _name_points(axes, panel)
    return figure


def _has_spread(groups: Sequence[GroupSummary]) -> bool:
    counts = [[len(row.method.values) for row in group.rows] for group in groups]
    is_small = all(len(each) <= _MOST_BOXES for each in counts)
    return is_small and any(sum(n >= 3 for n in each) >= 2 for each in counts)


def draw_cost(axes: Axes, panel: CostPanel, *, by_method: bool = False) -> None:
    """Points with their intervals and the Pareto front, or rows. by_method: a colour for each."""
    for place, point in enumerate(panel.points):
        color, marker, _ = KINDS[point.kind]
        if by_method:
            color, marker = Style(point.number).color, Style(point.number).marker[0]
        bar = None if point.bar is None else [[point.bar[0]], [point.bar[1]]]
        at = (point.mean, place) if panel.has_rows else (point.x, point.mean)
        axes.errorbar(
            *at, **{"xerr" if panel.has_rows else "yerr": bar}, color=color, marker=marker,
            markersize=8 if point.is_on_front else 7, markeredgewidth=1.4, capsize=3,
            markerfacecolor=color if point.is_on_front else "white", elinewidth=1.0,
            linestyle="none", zorder=3,
        )  # fmt: skip
    if panel.has_rows:
        _finish_rows(axes, panel)
        return
    finish(axes, x=panel.x_title, y=panel.y_title, title=_title(panel.title, panel.note))
    for point in panel.lines:
        axes.axhline(point.mean, color=KINDS[point.kind][0], linewidth=1.0, linestyle=DOTTED)
        axes.annotate(
            f"{point.label},\ncost {point.cost}", (1, point.mean),
            xycoords=("axes fraction", "data"), xytext=(4, 0), textcoords="offset points",
            va="center", fontsize=8, color=INK, annotation_clip=False,
        )  # fmt: skip
    if len(panel.front) > 1:
        axes.step(
            *zip(*panel.front, strict=True), where="post", color=GREY, linewidth=1.2,
            linestyle=DASHED, zorder=1,
        )  # fmt: skip
    if panel.is_log:
        axes.set_xscale("log")
        axes.set_xticks(panel.ticks, [f"{tick:g}" for tick in panel.ticks])
        axes.minorticks_off()
        costs = [point.x for point in panel.points]
        axes.set_xlim(min(costs) / 1.3, max(costs) * 1.3)
    else:
        axes.margins(x=0.2)
    axes.set_ylim(*panel.y_range)


def _finish_rows(axes: Axes, panel: CostPanel) -> None:
    """The methods from the top in the study's order, each with its cost at the end of the row."""
    title = _title(panel.title, panel.note)
    finish(axes, x=f"{panel.y_title}; right: {panel.x_title}", title=title, grid="x")
    axes.set_yticks(range(len(panel.points)), [point.label for point in panel.points])
    axes.set_ylim(len(panel.points) - 0.4, -0.6)
    axes.set_xlim(*panel.y_range)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0, labelsize=8)
    for height, point in enumerate(panel.points):
        axes.annotate(
            point.cost, (1, height), xycoords=("axes fraction", "data"), xytext=(6, 0), va="center",
            textcoords="offset points", fontsize=8, color=INK, annotation_clip=False,
        )  # fmt: skip
    axes.annotate(
        "cost", (1, -0.75), xycoords=("axes fraction", "data"), xytext=(6, 0), fontsize=8,
        textcoords="offset points", color=INK, annotation_clip=False,
    )  # fmt: skip


def _title(title: str, note: str) -> str:
    return "\n".join([*filter(None, [title]), *textwrap.wrap(note, 100)])


def _name_points(axes: Axes, panel: CostPanel) -> None:
    """Names beside the points, clear of intervals and lines; once the figure is laid out."""
    if panel.has_rows:
        return
    left, right = axes.get_xlim()
    spans = [(start, mean, end) for (start, mean), (end, _) in pairwise(panel.front)]
    spans += [(left, point.mean, right) for point in panel.lines]
    label_points(
        axes,
        [(point.x, point.mean) for point in panel.points],
        [point.label for point in panel.points],
        bars=[(point.x, min(point.extent), max(point.extent)) for point in panel.points],
        spans=spans,
    )


def _add_legend(figure: Figure, panels: Sequence[CostPanel]) -> None:
    """The kinds of methods that are drawn, and how the Pareto front is marked."""
    lines = require("matplotlib.lines", extra="report", purpose="pictures")
    drawn = {point.kind for panel in panels for point in panel.points}

    def mark(color: str, marker: str, face: str, label: str) -> Any:
        return lines.Line2D([], [], color=color, marker=marker, markerfacecolor=face, markersize=7,
                            linestyle="none", label=label)  # fmt: skip

    handles = [mark(color, marker, "white", label)
               for kind, (color, marker, label) in KINDS.items() if kind in drawn]  # fmt: skip
    handles.append(mark(GREY, "o", GREY, "filled: on the Pareto front, by mean"))
    if any(len(panel.front) > 1 and not panel.has_rows for panel in panels):
        handles.append(lines.Line2D([], [], color=GREY, linestyle=DASHED, label="front"))
    figure.legend(
        handles=handles, loc="outside lower center", frameon=False, ncols=len(handles),
        fontsize=8.5, labelcolor=INK, handletextpad=0.4, columnspacing=1.4,
    )  # fmt: skip


def _draw_spread(axes: Axes, panel: SpreadPanel) -> None:
    boxed = [point for point in panel.points if len(point.values) >= 3]
    boxes = axes.boxplot(
        [[value for _, value in point.values] for point in boxed],
        positions=[point.x for point in boxed], widths=0.5, whis=(0, 100), showfliers=False,
        patch_artist=True, medianprops={"color": INK}, whiskerprops={"color": GREY},
        capprops={"color": GREY},
    )  # fmt: skip
    for box, point in zip(boxes["boxes"], boxed, strict=True):
        color = KINDS[point.kind][0]
        box.set(facecolor=f"{color}30", edgecolor=color)
    for point in panel.points:
        values = [value for _, value in point.values]
        color = KINDS[point.kind][0]
        axes.scatter([point.x] * len(values), values, s=14, color=color, zorder=3, linewidths=0)
    finish(axes, y=panel.y_title, title=f"{panel.title}\n{panel.note}")
    axes.set_xticks([point.x for point in panel.points], panel.labels)
    axes.set_xlim(0.5, len(panel.points) + 0.5)
    axes.margins(y=0.12)
    axes.tick_params(axis="x", labelsize=8)


def _draw_periods(panels: Sequence[PeriodPanel]) -> Figure:
    figure = new_figure(_WIDTH, 0.5 + 3.7 * len(panels))
    transforms = require("matplotlib.transforms", extra="report", purpose="pictures")
    for axes, panel in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True):
        color = KINDS["static"][0]
        beside = transforms.offset_copy(axes.transData, fig=figure, x=-7, units="points")
        axes.plot([p.x for p in panel.points], [p.mean for p in panel.points], color=color, lw=1.2)
        for point in panel.points:
            bar = None if point.bar is None else [[point.bar[0]], [point.bar[1]]]
            axes.errorbar(
                point.x, point.mean, yerr=bar, color=color, marker="o", markersize=6, capsize=3,
                linestyle="none", elinewidth=1.2,
            )  # fmt: skip
            axes.scatter(
                [point.x] * len(point.values), [value for _, value in point.values], s=11,
                color=color, alpha=0.5, linewidths=0, transform=beside,
            )  # fmt: skip
        if panel.baseline is not None:
            axes.axhline(panel.baseline.mean, color=INK, linewidth=1.0, linestyle=DASHED, zorder=1)
            if panel.baseline.low is not None and panel.baseline.high is not None:
                span = (panel.baseline.low, panel.baseline.high)
                axes.axhspan(*span, color="#00000014", linewidth=0)
        finish(axes, x=panel.x_title, y=panel.y_title, title=_title(panel.title, panel.note))
        axes.set_ylim(*panel.y_range)
    return figure


@draw.register(DemoResult)
def draw_demo(result: DemoResult) -> Figure:
    """Left: accuracy against cost. Right: the forward bits at every step, without float32."""
    left, right = demo_panels(result)
    figure = new_figure(11.0, 4.3)
    first, second = figure.subplots(1, 2)
    draw_cost(first, left, by_method=True)
    draw_bits(second, right, y="bits of weights and activations")
    second.set_title(right.title, loc="left", fontsize=9.5, color=INK)
    figure.legend(
        *second.get_legend_handles_labels(), frameon=False, fontsize=9,
        loc="outside lower right", ncols=len(right.lines), title="forward/backward bits",
    )  # fmt: skip
    figure.draw_without_rendering()
    _name_points(first, left)
    return figure


def demo_panels(result: DemoResult) -> tuple[CostPanel, BitsPanel]:
    """The panels of the demo."""
    points, lines = [], []
    costs, means = [row.relative_cost for row in result.rows], [row.mean for row in result.rows]
    front = pareto_front(costs, means, higher_is_better=True)
    for number, row in enumerate(result.rows):
        values = parse_schedule(row.forward).values(row.num_steps)
        static: Kind = "float32" if values[0] is None else "static"
        points.append(
            _summarized(
                summarize_values(row.accuracies),
                key=row.method,
                label=row.method,
                number=number,
                kind="schedule" if len(set(values)) > 1 else static,
                x=row.relative_cost,
                values=tuple(enumerate(row.accuracies)),
                is_on_front=front[number],
                cost=cost_text(row.relative_cost),
                bitops="",
            )
        )
        if None not in values:
            found = tuple(segments(values))
            lines.append(BitsLine(label=row.method, segments=found, number=number))
    drawn = [bits for each in lines for _, _, bits in each.segments]
    cost = _cost_panel(
        points, title="", note=f"Accuracy against cost: {_seeds_note(points)}",
        cost="BitOPs, static 8/8 = 1", y_title="test accuracy, %",
    )  # fmt: skip
    bits = BitsPanel(
        title="Forward bits at every step (float32 is not drawn)", note="", lines=tuple(lines),
        num_steps=max(row.num_steps for row in result.rows), axis=bits_axis(drawn),
    )  # fmt: skip
    return cost, bits


# -- plotly ---------------------------------------------------------------------------------------


def cost_chart(panel: CostPanel) -> Chart:
    """Points with their intervals, every run, and the Pareto front."""
    dash = {"color": "var(--ink)/0.5", "width": 1.5, "dash": "dash", "shape": "hv"}
    traces = [line(panel.front, line=dash, hoverinfo="skip")]
    for point in (*panel.points, *panel.lines):
        traces += _point_traces(point, is_far=point in panel.lines, panel=panel)
    scale: dict[str, Any] = {}
    if panel.is_log:
        ends = [math.log10(f(point.x for point in panel.points)) for f in (min, max)]
        scale = {
            "type": "log", "range": list(padded(ends)), "tickvals": list(panel.ticks),
            "ticktext": [f"{tick:g}" for tick in panel.ticks],
        }  # fmt: skip
    return chart(
        traces,
        height=400,
        hovermode="closest",
        xaxis=axis(panel.x_title, **scale),
        yaxis=axis(panel.y_title, range=list(panel.y_range)),
    )


def _point_traces(point: Point, *, is_far: bool, panel: CostPanel) -> list[dict[str, Any]]:
    style = Style(point.number)
    hover = f"%{{fullData.name}}<br>{point.summary}<br>{point.bitops}<extra></extra>"
    common = {"name": plain_text(point.label), "meta": point.key}
    if is_far:
        ends = [point_at.x for point_at in panel.points] or [0.0, 1.0]
        dots = {"color": style.css(), "width": 1.5, "dash": "dot"}
        pairs = [(min(ends), point.mean), (max(ends), point.mean)]
        return [line(pairs, line=dots, hovertemplate=hover, **common)]
    runs = line(
        [(point.x, value) for _, value in point.values],
        mode="markers",
        marker={"symbol": f"{style.marker[1]}-open", "size": 8, "color": style.css()},
        opacity=0.8,
        customdata=[seed for seed, _ in point.values],
        hovertemplate="%{fullData.name}, seed %{customdata}: %{y:.4g}<extra></extra>",
        **common,
    )
    border = {"width": 1.5, "color": "var(--card)"}
    mean = line(
        [(point.x, point.mean)],
        mode="markers",
        marker={"symbol": style.marker[1], "size": 13, "color": style.css(), "line": border},
        error_y=_error_y([point], style.css()),
        hovertemplate=hover,
        **common,
    )
    return [runs, mean] if len(point.values) > 1 else [mean]


def _error_y(points: Sequence[Point], color: str) -> dict[str, Any]:
    bars = [point.bar or (0.0, 0.0) for point in points]
    return {
        "type": "data", "symmetric": False, "color": color, "thickness": 1.5, "width": 5,
        "arrayminus": [below for below, _ in bars], "array": [above for _, above in bars],
    }  # fmt: skip


def period_chart(panel: PeriodPanel) -> Chart:
    """The same for a critical-periods study."""
    style = Style(0)
    traces = [
        line(
            [(point.x, point.mean) for point in panel.points],
            mode="lines+markers",
            line={"color": style.css(), "width": 2},
            marker={"size": 8, "color": style.css()},
            error_y=_error_y(panel.points, style.css()),
            text=[plain_text(point.label) for point in panel.points],
            hovertemplate="%{text}<br>%{y:.4g}<extra></extra>",
        )
    ]
    if panel.baseline is not None and panel.points:
        ends = [(panel.points[i].x, panel.baseline.mean) for i in (0, -1)]
        dash = {"color": "var(--ink)/0.6", "width": 1.5, "dash": "dash"}
        traces.append(line(ends, line=dash, hoverinfo="skip"))
    return chart(
        traces, height=360, xaxis=axis(panel.x_title),
        yaxis=axis(panel.y_title, range=list(panel.y_range)),
    )  # fmt: skip
