"""A precision range test: by the relative criterion, or the paper's (CPT, Fig. 4)."""

from __future__ import annotations

import math
from statistics import fmean
from typing import TYPE_CHECKING

from bitcycle.extras import require
from bitcycle.range_criteria import PrecisionRun, RangeTest
from bitcycle_lab.report import draw
from bitcycle_lab.report.figures import style
from bitcycle_lab.report.figures.style import DASHED, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_POINTS = 300  # of one precision
_MARK = "#d62728"


@draw.register(RangeTest)
def draw_range_test(test: RangeTest) -> Figure:
    """The metric over training steps, a line per precision: the first repeat.

    By the relative criterion all lines begin at one step, and the dashed goal is that of the last
    window, which is grey. By the paper's criterion the lines follow each other, each with its goal,
    and the switching point is circled.
    """
    figure = style.new_figure(7.0, 4.0)
    axes = figure.subplots()
    is_paper = test.settings.is_paper
    palette = require("matplotlib", extra="report", purpose="pictures").colormaps["viridis"]
    runs = [test.runs_at(bits)[0] for bits in test.verdicts]
    begin = 0
    for place, run in enumerate(runs):
        _draw_run(axes, test, run, begin, palette(0.9 * place / max(1, len(runs) - 1)))
        if is_paper:
            begin += len(run.metric)
    if not is_paper:
        top = runs[-1]
        axes.axhline(
            goal(test, top), color=INK, linestyle=DASHED, linewidth=1.0,
            label=f"{test.settings.share:g} of the gain\nat {top.bits} bits",
        )  # fmt: skip
        length = len(top.metric)
        axes.axvspan(length - test.window, length - 1, color="#eeeeee", zorder=0.1)
    x = "training step" if is_paper else "training step, from the same start"
    style.style_axes(axes, x=x, y=f"{test.name}, mean over {test.window} steps", grid="y")
    axes.locator_params(axis="x", integer=True)
    found = "no precision passes" if test.low is None else f"lower bound {test.low} bits"
    title = f"Range test: {found}\n{test.basis}"
    axes.set_title(title, loc="left", fontsize=10, color=INK, weight="bold")
    figure.legend(loc="outside right upper", frameon=False, fontsize=9, title="bits")
    return figure


def _draw_run(axes: Axes, test: RangeTest, run: PrecisionRun, begin: int, color: object) -> None:
    is_bound = run.bits == test.low
    steps = style.thin(range(len(run.metric)), MOST_POINTS)
    x, means = [begin + step for step in steps], window_means(test, run)
    axes.plot(
        x, [means[i] for i in steps], color=color, linewidth=3.0 if is_bound else 1.6,
        label=f"{run.bits}: lower bound" if is_bound else str(run.bits),
    )  # fmt: skip
    if test.settings.is_paper:
        is_last = run.bits == max(test.verdicts)  # the thin lines have one entry in the legend
        axes.plot(
            x, [run.metric[i] for i in steps], color=color, linewidth=0.8, alpha=0.35,
            label="each step" if is_last else "",
        )  # fmt: skip
        axes.hlines(
            goal(test, run), x[0], x[-1], color=INK, linestyle=DASHED, linewidth=1.0,
            label=f"start {'+' if test.higher_is_better else '-'} threshold" if is_last else "",
        )  # fmt: skip
        if is_bound:
            step = switching_point(test, run)
            axes.plot(
                begin + step, means[step], marker="o", markersize=14, markerfacecolor="none",
                linestyle="none", markeredgecolor=_MARK, markeredgewidth=1.8, zorder=5,
                label="switching point",
            )  # fmt: skip
    if not run.is_finite:
        axes.plot(
            x[-1], 0.04, marker="x", color=_MARK, linestyle="none", label="NaN or infinity",
            transform=axes.get_xaxis_transform(),
        )  # fmt: skip


def goal(test: RangeTest, run: PrecisionRun) -> float:
    """The metric that the run's last window must reach: at the most bits, or by a threshold."""
    if not run.is_finite:
        return math.nan
    if test.settings.threshold is None:
        return test.start(run) + test.settings.share * (test.end(run) - test.start(run))
    sign = 1 if test.higher_is_better else -1
    return test.start(run) + sign * test.settings.threshold


def window_means(test: RangeTest, run: PrecisionRun) -> list[float]:
    """The mean over the last window, or fewer steps at first, by step."""
    window = test.window
    return [fmean(run.metric[max(0, i + 1 - window) : i + 1]) for i in range(len(run.metric))]


def switching_point(test: RangeTest, run: PrecisionRun) -> int:
    """The step at which the mean over a window first passes the goal."""
    sign = 1 if test.higher_is_better else -1
    means, needed = window_means(test, run), goal(test, run)
    passing = (i for i in range(test.window - 1, len(means)) if sign * (means[i] - needed) > 0)
    return next(passing, len(means) - 1)
