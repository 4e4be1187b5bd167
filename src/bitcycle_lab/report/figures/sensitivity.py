"""The change of loss and gradient with one layer at few bits, a bar per layer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from bitcycle.sensitivity import OUTLIER, LayerSensitivity, Sensitivity
from bitcycle.tables import THE_MODEL
from bitcycle_lab.report import draw
from bitcycle_lab.report.figures import style
from bitcycle_lab.report.figures.style import DASHED, INK, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LAYERS = 60  # the most sensitive ones
_QUIET = "#bbbbbb"


@draw.register(Sensitivity)
def draw_sensitivity(found: Sensitivity) -> Figure:
    """Bars, most sensitive first; colored beyond twice the median layer's change of the gradient.

    A change that is NaN or infinite has a cross and no bar.
    """
    rows = found.rows[:MOST_LAYERS]
    figure = style.new_figure(8.0, 1.2 + 0.2 * len(rows))
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(2, 1))
    _draw_bars(left, rows, [100 * row.gradient_change for row in rows], found)
    limit = 100 * OUTLIER * found.median
    if math.isfinite(limit):
        left.axvline(
            limit, color=INK, linestyle=DASHED, linewidth=1.0, label="twice the median layer"
        )
        figure.legend(loc="outside upper right", frameon=False, fontsize=9)
    _draw_bars(right, rows, [row.loss_change for row in rows], found)
    style.style_axes(left, x="change of the gradient, %", grid="x")
    style.style_axes(right, x="change of the loss", grid="x")
    names = [style.plain_text(row.name) or THE_MODEL for row in rows]
    left.set_yticks(range(len(rows)), names)
    left.set_ylim(len(rows) - 0.4, -0.6)
    for axes in (left, right):
        axes.tick_params(axis="y", length=0, labelsize=8)
    title = f"One layer at {found.bits}, the others in float32"
    left.set_title(title, loc="left", fontsize=10, color=INK, weight="bold")
    return figure


def _draw_bars(
    axes: Axes, rows: tuple[LayerSensitivity, ...], widths: list[float], found: Sensitivity
) -> None:
    colors = [Style(0).color if row.name in found.sensitive else _QUIET for row in rows]
    finite = [width if math.isfinite(width) else 0.0 for width in widths]
    axes.barh(range(len(rows)), finite, height=0.75, color=colors)
    broken = [place for place, width in enumerate(widths) if not math.isfinite(width)]
    axes.plot([0.0] * len(broken), broken, "x", color=Style(0).color)
