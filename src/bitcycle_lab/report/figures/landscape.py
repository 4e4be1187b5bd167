"""Loss landscapes as contours and slices, in the manner of CPT, Figs. 2 and 6."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from bitcycle.extras import require
from bitcycle_lab.landscape.result import Landscape, Landscapes
from bitcycle_lab.report import draw
from bitcycle_lab.report.figures import style
from bitcycle_lab.report.figures.style import INK, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Kind = Literal["contour", "slice"]

_STEPS = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)  # levels in a power of ten
_MAX_LEVELS = 14
_GEOMETRIC = 5.0  # times the lowest loss, from which on levels grow by a factor
_SHARE = 0.9  # of all losses that are below the highest level
_SIZE = 3.5  # inches of a panel


def make_levels(landscapes: Landscapes) -> list[float]:
    """Round levels common to all landscapes: geometric, or evenly spaced if the losses are alike.

    Nine tenths of all losses are below the highest level.
    """
    losses = np.concatenate([np.ravel(item.losses) for item in landscapes.items])
    losses = losses[np.isfinite(losses)]
    if losses.size == 0:
        raise ValueError("no loss is finite: nothing can be drawn")
    low, high = float(losses.min()), float(np.quantile(losses, _SHARE))
    if high <= low:
        return [low, low + max(1e-6, abs(low) * 1e-6)]
    if low < 0 or high <= _GEOMETRIC * low:
        ticker = require("matplotlib.ticker", extra="report", purpose="pictures")
        return [float(x) for x in ticker.MaxNLocator(_MAX_LEVELS - 1).tick_values(low, high)]
    lowest = max(low, high / 1000)
    powers = range(math.floor(math.log10(lowest)), math.ceil(math.log10(high)) + 1)
    numbers = [float(f"{step}e{power}") for power in powers for step in _STEPS]
    inside = [x for x in numbers if lowest <= x <= high * 1.001]
    return inside[-_MAX_LEVELS:] if len(inside) > 1 else [lowest, high]


@draw.register(Landscape)
def draw_landscape(landscape: Landscape, **options: Any) -> Figure:
    """Draw one landscape."""
    return draw_landscapes(Landscapes((landscape,)), **options)


@draw.register(Landscapes)
def draw_landscapes(
    landscapes: Landscapes, *, kind: Kind = "contour", levels: Sequence[float] = ()
) -> Figure:
    """Contours side by side on the same levels, or all as a "slice" along the first direction.

    levels: of the contours; round ones by default.
    """
    if kind not in get_args(Kind):
        raise ValueError(f"kind ({kind!r}) must be one of {', '.join(get_args(Kind))}")
    if kind == "slice":
        return _draw_slices(landscapes)
    levels = levels or make_levels(landscapes)
    number = len(landscapes.items)
    figure = style.new_figure(_SIZE * number + 1.1, _SIZE + 0.5)
    panels = figure.subplots(1, number, squeeze=False)[0]
    for axes, item in zip(panels, landscapes.items, strict=True):
        filled = _draw_contours(axes, item, levels)
    bar = figure.colorbar(filled, ax=figure.axes, shrink=0.8, ticks=levels, extend="both")
    bar.set_label("loss", color=INK)
    bar.ax.yaxis.set_major_formatter(lambda level, _: f"{level:g}")
    bar.ax.tick_params(labelsize=8, colors=INK)
    return figure


def _draw_contours(axes: Axes, item: Landscape, levels: Sequence[float]) -> Any:
    colors = require("matplotlib.colors", extra="report", purpose="pictures")
    norm = colors.BoundaryNorm(levels, 256, extend="both")
    heights = np.ma.masked_invalid(np.transpose(item.losses))  # rows of a picture are the betas
    grid = (item.alphas, item.alphas, heights)
    filled = axes.contourf(*grid, levels=levels, extend="both", norm=norm, cmap="viridis")
    # white lines on the dark half of the palette
    inks = ["white" if 2 * place < len(levels) else INK for place in range(len(levels))]
    lines = axes.contour(*grid, levels=levels, colors=inks, linewidths=0.6)
    axes.clabel(lines, fontsize=7, fmt=lambda level: f"{level:g}")
    axes.plot(0, 0, marker="+", color="white", markersize=9, markeredgewidth=1.6)
    axes.set_facecolor("#bdbdbd")  # shows where a loss is not finite
    axes.set_aspect("equal")
    axes.locator_params(nbins=5)
    axes.set_xlabel("alpha", color=INK)
    axes.set_ylabel("beta", color=INK)
    axes.tick_params(colors=INK, labelsize=8)
    axes.set_title(f"{_short(item.label)}\n{_describe(item)}", fontsize=9, color=INK)
    return filled


def _short(label: str) -> str:
    return style.plain_text(label if len(label) <= 36 else f"...{label[-33:]}")


def _describe(item: Landscape) -> str:
    """The numbers of a landscape in one line."""
    found = item.sharpness()
    rise = f"rise {found.rises[-1]:.3g} at radius {found.radii[-1]:g}"
    bad = f", {item.num_nonfinite} not finite" if item.num_nonfinite else ""
    return f"{item.precision}, loss {item.center:.3g}, {rise}{bad}"


def _draw_slices(landscapes: Landscapes) -> Figure:
    figure = style.new_figure(7.0, 4.0)
    axes = figure.subplots()
    for number, item in enumerate(landscapes.items):
        axes.plot(
            item.alphas, np.ma.masked_invalid(item.slice()), color=Style(number).color, marker="o",
            markersize=3, linewidth=1.4, label=f"{_short(item.label)} ({item.precision})",
        )  # fmt: skip
    style.style_axes(axes, x="alpha (beta = 0)", y="loss")
    axes.legend(frameon=False, fontsize=9)
    return figure
