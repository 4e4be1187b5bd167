"""The demo: accuracy, training cost and time of a step, a row per method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bitcycle_lab.report import draw
from bitcycle_lab.report.figures import style
from bitcycle_lab.report.figures.style import INK, Style
from bitcycle_lab.study.demo import DemoResult
from bitcycle_lab.study.statistics import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Row:
    """One method. cost, time: float32 = 1."""

    label: str
    accuracy: Summary
    values: tuple[float, ...]
    cost: float
    time: float


def demo_rows(result: DemoResult) -> list[Row]:
    """The methods in the order of the table."""
    rows = []
    for each in result.methods:
        time = result.time_of(each.label).ratio
        assert each.summary is not None
        assert each.relative_cost is not None
        assert time is not None
        rows.append(
            Row(
                label=each.label,
                accuracy=each.summary,
                values=tuple(each.result.values.values()),
                cost=each.relative_cost,
                time=time,
            )
        )
    return rows


@draw.register(DemoResult)
def draw_demo(result: DemoResult) -> Figure:
    """Left: the mean accuracy and every seed. Then cost and time of a step against float32's."""
    rows = demo_rows(result)
    figure = style.new_figure(10.0, 2.4)
    accuracy, cost, time = figure.subplots(1, 3, width_ratios=(1.4, 1, 1))
    for place, row in enumerate(rows):
        middle = (len(row.values) - 1) / 2
        heights = [place + 0.14 * (seed - middle) for seed in range(len(row.values))]  # no overlap
        color, mean = Style(place).color, row.accuracy.mean
        accuracy.plot(row.values, heights, ".", color=color, markersize=8, alpha=0.6)
        accuracy.plot([mean, mean], [place - 0.25, place + 0.25], color=color, linewidth=2.5)
    seeds = style.counted((len(row.values) for row in rows), "seed")
    title = f"{seeds} (dots) and their mean"
    style.style_axes(accuracy, x="test accuracy, %", title=title, grid="x")
    _draw_bars(cost, [row.cost for row in rows])
    style.style_axes(cost, x="BitOPs, float32 = 1", title="training cost", grid="x")
    _draw_bars(time, [row.time for row in rows])
    style.style_axes(time, x="time, float32 = 1", title="time of a step", grid="x")
    _name_rows(accuracy, rows)
    for axes in (cost, time):
        _name_rows(axes, rows)
        axes.tick_params(axis="y", labelleft=False)
    return figure


def draw_times(result: DemoResult, width: float) -> Figure:
    """The time of a step against float32's."""
    rows = demo_rows(result)
    figure = style.new_figure(width, 2.4)
    axes = figure.subplots()
    _draw_bars(axes, [row.time for row in rows])
    style.style_axes(axes, x="time of a step, float32 = 1", grid="x")
    _name_rows(axes, rows)
    return figure


def _draw_bars(axes: Axes, shares: Sequence[float]) -> None:
    for place, share in enumerate(shares):
        axes.barh(place, share, height=0.5, color=Style(place).color)
        axes.annotate(f"{share:.2g}", (share, place), xytext=(4, 0), textcoords="offset points",
                      va="center", fontsize=9, color=INK)  # fmt: skip
    axes.set_xlim(0, 1.2 * max(shares))
    axes.locator_params(axis="x", nbins=4)


def _name_rows(axes: Axes, rows: Sequence[Row]) -> None:
    """The methods from the top."""
    axes.set_yticks(range(len(rows)), [style.plain_text(row.label) for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
