"""A precision range test: by the relative criterion, or the paper's (CPT, Fig. 4)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from bitcycle.extras import require
from bitcycle.range_curves import RangeCurve, RelativeCurve
from bitcycle.range_test import RangeTest
from bitcycle.report import draw
from bitcycle.report.figures import style
from bitcycle.report.figures.style import DASHED, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_POINTS = 300  # of one precision
_MARK = "#d62728"


# -- data -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PrecisionCurve:
    """The steps at one number of bits. goal: start + threshold, where it decides; else None."""

    bits: int
    start: int
    stop: int
    steps: tuple[int, ...]
    metric: tuple[float, ...]
    means: tuple[float, ...]
    goal: float | None
    is_finite: bool

    @property
    def middle(self) -> float:
        """Where the bits are written."""
        return (self.start + self.stop - 1) / 2


@dataclass(frozen=True, kw_only=True)
class RangeTestPanel:
    """One test. switch: the step, and the window's mean, at which the lower bound is found."""

    verdict: str
    y_title: str
    threshold: float
    curves: tuple[PrecisionCurve, ...]
    switch: tuple[int, float] | None


def range_test_panel(curve: RangeCurve, *, limit: int = MOST_POINTS) -> RangeTestPanel:
    """The panel of a test. limit: the most points per precision."""
    means = curve.window_means()
    low = curve.first_passing
    curves = []
    start = 0
    for bits in curve.precisions:
        stop = start + len(curve.metric_at(bits))
        steps = style.thin(range(start, stop), limit)
        goal = curve.start(bits) + curve.threshold
        is_judged = (low is None or bits <= low) and math.isfinite(goal)
        curves.append(
            PrecisionCurve(
                bits=bits,
                start=start,
                stop=stop,
                steps=tuple(steps),
                metric=tuple(curve.metric[step] for step in steps),
                means=tuple(means[step] for step in steps),
                goal=goal if is_judged else None,
                is_finite=all(map(math.isfinite, curve.metric_at(bits))),
            )
        )
        start = stop
    verdict = f"no gain above {curve.threshold:g}" if low is None else f"learns from {low} bits on"
    return RangeTestPanel(
        verdict=verdict,
        y_title=f"{curve.name}, mean over {curve.window} steps",
        threshold=curve.threshold,
        curves=tuple(curves),
        switch=switching_point(curve),
    )


def switching_point(curve: RangeCurve) -> tuple[int, float] | None:
    """(step, mean) where the window's mean first exceeds start + threshold at the lower bound."""
    low = curve.first_passing
    if low is None:
        return None
    goal, start = curve.start(low) + curve.threshold, curve.bits.index(low)
    stop = start + len(curve.metric_at(low))
    means = curve.window_means()
    passing = (step for step in range(start + curve.window - 1, stop) if means[step] > goal)
    # rounding may keep the last mean at the goal although the gain is above the threshold
    step = next(passing, stop - 1)
    return step, means[step]


@dataclass(frozen=True, kw_only=True)
class BitsLine:
    """The training at one number of bits in the first repeat: the mean over a window by step."""

    bits: int
    steps: tuple[int, ...]
    means: tuple[float, ...]
    is_bound: bool
    is_finite: bool


@dataclass(frozen=True, kw_only=True)
class RelativePanel:
    """One test by the relative criterion. goal: the metric that bits must reach in the last window.

    last_window: its first and its last step.
    """

    verdict: str
    y_title: str
    goal_name: str
    lines: tuple[BitsLine, ...]
    goal: float
    last_window: tuple[int, int]


def relative_panel(curve: RelativeCurve, *, limit: int = MOST_POINTS) -> RelativePanel:
    """The panel of a test: its first repeat, since others leave precisions out.

    limit: the most points per precision.
    """
    low, lines = curve.lower_bound, []
    for bits in curve.precisions:
        first = curve.runs_at(bits)[0].metric
        steps = style.thin(range(len(first)), limit)
        windows = (first[max(0, step + 1 - curve.window) : step + 1] for step in steps)
        lines.append(
            BitsLine(
                bits=bits,
                steps=tuple(steps),
                means=tuple(map(fmean, windows)),
                is_bound=bits == low,
                is_finite=all(map(math.isfinite, first)),
            )
        )
    top = curve.runs_at(curve.high)[0].metric
    start, end = fmean(top[: curve.window]), fmean(top[-curve.window :])
    length = max(len(run.metric) for run in curve.runs)
    share, word = f"{curve.share:g}", "rise" if curve.higher_is_better else "drop"
    return RelativePanel(
        verdict="diverges" if low is None else f"lower bound {low} bits",
        y_title=f"{curve.name}, mean over {curve.window} steps"
        + (", first repeat" if curve.num_repeats > 1 else ""),
        goal_name=f"{share} of the {word} at {curve.high} bits",
        lines=tuple(lines),
        goal=start + curve.share * (end - start),
        last_window=(length - curve.window, length - 1),
    )


# -- matplotlib -----------------------------------------------------------------------------------


@draw.register(RangeTest)
def draw_range_test(test: RangeTest) -> Figure:
    """The curve of a test."""
    curve = test.curve
    return (
        draw_relative_curve(curve) if isinstance(curve, RelativeCurve) else draw_range_curve(curve)
    )


@draw.register(RelativeCurve)
def draw_relative_curve(curve: RelativeCurve) -> Figure:
    """The metric over training steps, a line per precision, and the goal of the last window."""
    figure = style.new_figure(7.0, 4.0)
    axes = figure.subplots()
    panel = relative_panel(curve)
    palette = require("matplotlib", extra="report", purpose="pictures").colormaps["viridis"]
    for place, line in enumerate(panel.lines):
        color = palette(0.9 * place / max(1, len(panel.lines) - 1))
        label = f"{line.bits}: lower bound" if line.is_bound else str(line.bits)
        width = 3.0 if line.is_bound else 1.6
        axes.plot(line.steps, line.means, color=color, linewidth=width, label=f"{label}")
        if not line.is_finite:
            axes.plot(line.steps[-1], line.means[-1], marker="x", color=_MARK, linestyle="none")
    if math.isfinite(panel.goal):
        axes.axhline(panel.goal, color=INK, linestyle=DASHED, linewidth=1.0, label=panel.goal_name)
    axes.axvspan(*panel.last_window, color="#eeeeee", zorder=0.1)
    style.style_axes(axes, x="training step, from the same start", y=panel.y_title, grid="y")
    axes.locator_params(axis="x", integer=True)
    axes.set_title(
        f"Range test: {panel.verdict}", loc="left", fontsize=10, color=INK, weight="bold"
    )
    figure.legend(loc="outside right upper", frameon=False, fontsize=9, title="bits")
    return figure


@draw.register(RangeCurve)
def draw_range_curve(curve: RangeCurve) -> Figure:
    """The metric over training steps, a colour per precision, the switching point circled."""
    figure = style.new_figure(7.0, 4.0)
    axes = figure.subplots()
    panel = range_test_panel(curve)
    _draw(axes, panel)
    axes.set_title(
        f"Range test: {panel.verdict}", loc="left", fontsize=10, color=INK, weight="bold"
    )
    handles, labels = axes.get_legend_handles_labels()
    known = dict(zip(labels, handles, strict=True))  # each mark once
    figure.legend(
        known.values(), known, loc="outside lower center", frameon=False, fontsize=9,
        ncols=max(1, len(known)),
    )  # fmt: skip
    return figure


def _draw(axes: Axes, panel: RangeTestPanel) -> None:
    palette = require("matplotlib", extra="report", purpose="pictures").colormaps["viridis"]
    for place, curve in enumerate(panel.curves):
        color = palette(0.9 * place / max(1, len(panel.curves) - 1))
        axes.plot(curve.steps, curve.metric, color=color, linewidth=0.8, alpha=0.35)
        axes.plot(curve.steps, curve.means, color=color, linewidth=2.0)
        if curve.goal is not None:
            axes.hlines(
                curve.goal, curve.start - 0.5, curve.stop - 0.5, color=INK, linestyle=DASHED,
                linewidth=1.0, label=f"start + threshold ({panel.threshold:g})",
            )  # fmt: skip
        if not curve.is_finite:
            axes.plot(
                curve.stop - 1, 0.04, marker="x", color=_MARK, linestyle="none",
                transform=axes.get_xaxis_transform(), label="NaN or infinity",
            )  # fmt: skip
        if curve.start:
            axes.axvline(curve.start - 0.5, color="#cccccc", linewidth=0.8, zorder=0.5)
        axes.annotate(
            f"{curve.bits} bits" if place == 0 else str(curve.bits), (curve.middle, 1.0),
            xycoords=("data", "axes fraction"), xytext=(0, -12), textcoords="offset points",
            ha="center", fontsize=9, color=color, weight="bold",
        )  # fmt: skip
    if panel.switch is not None:
        axes.plot(
            *panel.switch, marker="o", markersize=14, markerfacecolor="none", linestyle="none",
            markeredgecolor=_MARK, markeredgewidth=1.8, zorder=5, label="switching point",
        )  # fmt: skip
    style.style_axes(axes, x="training step of the test", y=panel.y_title, grid="y")
    style.format_steps(axes)
    axes.set_xlim(-0.5, panel.curves[-1].stop - 0.5)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.1 * (high - low))  # room for the bits
