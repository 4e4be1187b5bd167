"""A precision range test as a picture, in the manner of CPT, Fig. 4."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bitcycle.extras import require
from bitcycle.range_test import RangeCurve, RangeTest
from bitcycle.report import draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK, _MARK = "#333333", "#d62728"
_THRESHOLD = "start + threshold"
_DASHES = (0, (4, 3))
_COLUMNS = 2  # of panels
MOST_POINTS = 300  # of a line of a panel: its width has no more to show


@draw.register(RangeTest)
def draw_range_test(test: RangeTest) -> Figure:
    """The metric over training steps, a colour per precision, the switching point circled."""
    return draw_range_curve(test.curve)


@draw.register(RangeCurve)
def draw_range_curve(curve: RangeCurve) -> Figure:
    """The same for the curve alone, such as that of a test that nothing passed."""
    figure, ((axes,),) = _make_figure(1, 1)
    _draw(axes, curve)
    axes.set_title(f"Range test: {_verdict(curve)}", loc="left", fontsize=10, color=_INK,
                   fontweight="bold")  # fmt: skip
    _add_legend(figure, [axes])
    return figure


def draw_range_panels(curves: Mapping[str, RangeCurve]) -> Figure:
    """Several tests, a named panel each, with long curves thinned."""
    columns = min(_COLUMNS, len(curves))
    figure, grid = _make_figure(-(-len(curves) // columns), columns)
    every = [axes for row in grid for axes in row]
    for axes, (name, curve) in zip(every, curves.items(), strict=False):
        _draw(axes, curve, most=MOST_POINTS)
        axes.set_title(f"{name}:\n{_verdict(curve)}", loc="left", fontsize=9.5, color=_INK,
                       fontweight="bold")  # fmt: skip
    for axes in every[len(curves) :]:
        axes.set_axis_off()
    _add_legend(figure, every)
    return figure


def _verdict(curve: RangeCurve) -> str:
    low = curve.first_passing
    return f"no gain above {curve.threshold:g}" if low is None else f"learns from {low} bits on"


def _make_figure(rows: int, columns: int) -> tuple[Figure, Any]:
    module = require("matplotlib.figure", extra="report", purpose="pictures")
    width, height = (7.0, 4.0) if columns == 1 else (4.6, 3.3)
    figure: Figure = module.Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _add_legend(figure: Figure, every: Sequence[Axes]) -> None:
    """What the marks of all panels mean, once each; a threshold that differs without its number."""
    found: dict[str, Any] = {}
    for axes in every:
        handles, labels = axes.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    thresholds = [label for label in found if label.startswith(_THRESHOLD)]
    if len(thresholds) > 1:
        found[_THRESHOLD] = found[thresholds[0]]
        for label in thresholds:
            del found[label]
    figure.legend(found.values(), found, loc="outside lower center", frameon=False, fontsize=9,
                  ncols=len(found))  # fmt: skip


def switching_point(curve: RangeCurve) -> tuple[int, float] | None:
    """(step, mean) where the window's mean first exceeds start + threshold at the lower bound."""
    low = curve.first_passing
    if low is None:
        return None
    goal, before = curve.start(low) + curve.threshold, curve.bits.index(low)
    means = curve.window_means()
    for step in range(before + curve.window - 1, before + len(curve.metric_at(low))):
        if means[step] > goal:
            return step, means[step]
    # rounding: the gain is above the threshold, the sum of start and threshold was not
    last = before + len(curve.metric_at(low)) - 1
    return last, means[last]


def _draw(axes: Axes, curve: RangeCurve, *, most: int | None = None) -> None:
    """most: points of a line, of which the others are left out evenly."""
    colormaps = require("matplotlib", extra="report", purpose="pictures").colormaps
    stride = 1 if most is None else -(-len(curve.bits) // most)
    palette = colormaps["viridis"]
    means, number = curve.window_means(), len(curve.precisions)
    begin = 0
    for place, bits in enumerate(curve.precisions):
        end = begin + len(curve.metric_at(bits))
        colour = palette(0.9 * place / max(1, number - 1))
        _draw_precision(axes, curve, means, bits, colour, stride)
        if begin:
            axes.axvline(begin - 0.5, color="#cccccc", linewidth=0.8, zorder=0.5)
        axes.annotate(f"{bits} bits" if place == 0 else str(bits), ((begin + end - 1) / 2, 1.0),
                      xycoords=("data", "axes fraction"), xytext=(0, -12), ha="center",
                      textcoords="offset points", fontsize=9, color=colour,
                      fontweight="bold")  # fmt: skip
        begin = end
    _mark_switch(axes, curve)
    axes.set_xlim(-0.5, len(curve.bits) - 0.5)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.1 * (high - low))  # room for the bits
    axes.set_xlabel("training step of the test", color=_INK)
    axes.set_ylabel(f"{curve.name}, mean over {curve.window} steps", color=_INK)
    axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=_INK, labelsize=9)


def _draw_precision(
    axes: Axes,
    curve: RangeCurve,
    means: tuple[float, ...],
    bits: int,
    colour: object,
    stride: int,
) -> None:
    """The metric (thin), its window mean, and the height that would have passed."""
    first = curve.bits.index(bits)
    steps = range(first, first + len(curve.metric_at(bits)))
    shown = steps[(len(steps) - 1) % stride :: stride]  # the last one is always among them
    axes.plot(shown, [curve.metric[step] for step in shown], color=colour, linewidth=0.8,
              alpha=0.35)  # fmt: skip
    axes.plot(shown, [means[step] for step in shown], color=colour, linewidth=2.0)
    is_judged = curve.first_passing is None or bits <= curve.first_passing
    if is_judged and math.isfinite(curve.start(bits)):
        axes.hlines(curve.start(bits) + curve.threshold, steps.start - 0.5, steps.stop - 0.5,
                    color=_INK, linestyle=_DASHES, linewidth=1.0,
                    label=f"{_THRESHOLD} ({curve.threshold:g})")  # fmt: skip
    if not all(math.isfinite(value) for value in curve.metric_at(bits)):
        axes.plot(steps.stop - 1, 0.04, marker="x", color=_MARK, linestyle="none",
                  transform=axes.get_xaxis_transform(), label="NaN or infinity")  # fmt: skip


def _mark_switch(axes: Axes, curve: RangeCurve) -> None:
    point = switching_point(curve)
    if point is not None:
        axes.plot(*point, marker="o", markersize=14, markerfacecolor="none", linestyle="none",
                  markeredgecolor=_MARK, markeredgewidth=1.8, zorder=5,
                  label="switching point")  # fmt: skip
