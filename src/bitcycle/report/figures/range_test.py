"""A precision range test: by the relative criterion, or the paper's (CPT, Fig. 4)."""

from __future__ import annotations

import math
from statistics import fmean
from typing import TYPE_CHECKING

from bitcycle.extras import require
from bitcycle.range_curves import PrecisionRun, RangeCurve
from bitcycle.range_test import RangeTest
from bitcycle.report import draw
from bitcycle.report.figures import style
from bitcycle.report.figures.style import DASHED, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_POINTS = 300  # of one precision
_MARK = "#d62728"


def verdict(curve: RangeCurve) -> str:
    """The result of a test in a few words."""
    low = curve.lower_bound
    return "no precision passes" if low is None else f"lower bound {low} bits"


def goal(curve: RangeCurve, run: PrecisionRun) -> float:
    """The metric that a run's last window must reach; NaN if training diverged."""
    sign = 1 if curve.higher_is_better else -1
    if not run.is_finite:
        return math.nan
    if curve.settings.is_paper:
        assert curve.settings.threshold is not None
        return curve.start(run) + sign * curve.settings.threshold
    top = next(each for each in curve.runs if each.repeat == run.repeat)
    if not top.is_finite:
        return math.nan
    start = curve.start(top)
    return start + curve.settings.share * (curve.end(top) - start)


def window_means(curve: RangeCurve, run: PrecisionRun) -> list[float]:
    """The mean over the last window, or fewer steps at first, by step."""
    window = curve.window
    return [fmean(run.metric[max(0, i + 1 - window) : i + 1]) for i in range(len(run.metric))]


def switching_point(curve: RangeCurve) -> tuple[int, float] | None:
    """(step, mean) of the lower bound's run at which the mean of a window first passes."""
    if curve.lower_bound is None:
        return None
    run = curve.runs_at(curve.lower_bound)[0]
    means, needed = window_means(curve, run), goal(curve, run)
    sign = 1 if curve.higher_is_better else -1
    passing = (
        step for step in range(curve.window - 1, len(means)) if sign * (means[step] - needed) > 0
    )
    step = next(passing, len(means) - 1)
    return step, means[step]


@draw.register(RangeTest)
def draw_range_test(test: RangeTest) -> Figure:
    """The curve of a test."""
    return draw_range_curve(test.curve)


@draw.register(RangeCurve)
def draw_range_curve(curve: RangeCurve) -> Figure:
    """The metric over training steps, a line per precision: the first repeat.

    By the relative criterion all lines begin at one step, and the dashed goal is that of the last
    window, which is grey. By the paper's criterion the lines follow each other, each with its goal,
    and the switching point is circled.
    """
    figure = style.new_figure(7.0, 4.0)
    axes = figure.subplots()
    is_paper = curve.settings.is_paper
    palette = require("matplotlib", extra="report", purpose="pictures").colormaps["viridis"]
    runs = [curve.runs_at(bits)[0] for bits in curve.precisions]
    begin = 0
    for place, run in enumerate(runs):
        color = palette(0.9 * place / max(1, len(runs) - 1))
        _draw_run(axes, curve, run, begin, color)
        if is_paper:
            if run.bits == curve.lower_bound:
                _draw_switching_point(axes, curve, begin)
            begin += len(run.metric)
    if not is_paper:
        top = runs[-1]
        axes.axhline(
            goal(curve, top), color=INK, linestyle=DASHED, linewidth=1.0,
            label=f"{curve.settings.share:g} of the gain\nat {top.bits} bits",
        )  # fmt: skip
        length = len(top.metric)
        axes.axvspan(length - curve.window, length - 1, color="#eeeeee", zorder=0.1)
    x = "training step" if is_paper else "training step, from the same start"
    style.style_axes(axes, x=x, y=f"{curve.name}, mean over {curve.window} steps", grid="y")
    axes.locator_params(axis="x", integer=True)
    axes.set_title(
        f"Range test: {verdict(curve)}", loc="left", fontsize=10, color=INK, weight="bold"
    )
    figure.legend(loc="outside right upper", frameon=False, fontsize=9, title="bits")
    return figure


def _draw_run(axes: Axes, curve: RangeCurve, run: PrecisionRun, begin: int, color: object) -> None:
    is_bound = run.bits == curve.lower_bound
    steps = style.thin(range(len(run.metric)), MOST_POINTS)
    x = [begin + step for step in steps]
    means = window_means(curve, run)
    label = f"{run.bits}: lower bound" if is_bound else str(run.bits)
    axes.plot(
        x, [means[i] for i in steps], color=color, linewidth=3.0 if is_bound else 1.6, label=label
    )
    if curve.settings.is_paper:
        axes.plot(x, [run.metric[i] for i in steps], color=color, linewidth=0.8, alpha=0.35)
        axes.hlines(
            goal(curve, run), x[0], x[-1], color=INK, linestyle=DASHED, linewidth=1.0,
            label="needed" if is_bound else "",
        )  # fmt: skip
    if not run.is_finite:
        axes.plot(
            x[-1], 0.04, marker="x", color=_MARK, linestyle="none", label="NaN or infinity",
            transform=axes.get_xaxis_transform(),
        )  # fmt: skip


def _draw_switching_point(axes: Axes, curve: RangeCurve, begin: int) -> None:
    point = switching_point(curve)
    assert point is not None
    axes.plot(
        begin + point[0], point[1], marker="o", markersize=14, markerfacecolor="none",
        linestyle="none", markeredgecolor=_MARK, markeredgewidth=1.8, zorder=5,
        label="switching point",
    )  # fmt: skip
