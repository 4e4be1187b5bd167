"""The demo: accuracy, training cost and time of a step, a row per method."""

from __future__ import annotations

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
def draw_demo(result: DemoResult, width: float = 10.0) -> Figure:
    """Left: the mean accuracy and every seed. Then cost and time of a step against float32's."""
    rows = demo_rows(result)
    figure = style.new_figure(width, 1.2 + 0.4 * len(rows))
    accuracy, cost, time = figure.subplots(1, 3, sharey=True, width_ratios=(1.4, 1, 1))
    for place, row in enumerate(rows):
        own = Style(place)
        accuracy.plot(
            row.values, [place] * len(row.values), ".", color=own.color, markersize=9, alpha=0.45,
            markeredgewidth=0,
        )  # fmt: skip
        accuracy.plot(row.accuracy.mean, place, "|", color=own.color, markersize=20,
                      markeredgewidth=2.5)  # fmt: skip
        _draw_bar(cost, place, row.cost, own.color)
        _draw_bar(time, place, row.time, own.color)
    accuracy.set_yticks(range(len(rows)), [style.plain_text(row.label) for row in rows])
    accuracy.set_ylim(len(rows) - 0.5, -0.5)
    seeds = style.counted((len(row.values) for row in rows), "seed")
    for axes, x, title in (
        (accuracy, "test accuracy, %", f"{seeds} (dots) and their mean"),
        (cost, "BitOPs, float32 = 1", "training cost"),
        (time, "time, float32 = 1", "time of a step"),
    ):
        style.style_axes(axes, x=x, title=title, grid="x")
        axes.tick_params(axis="y", length=0)
    return figure


def _draw_bar(axes: Axes, place: int, share: float, color: str) -> None:
    axes.barh(place, share, height=0.5, color=color)
    axes.annotate(f"{share:.2f}", (share, place), xytext=(4, 0), textcoords="offset points",
                  va="center", fontsize=9, color=INK)  # fmt: skip
    axes.set_xlim(0, max(1.25 * share, axes.get_xlim()[1]))
