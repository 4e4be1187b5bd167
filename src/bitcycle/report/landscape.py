"""Loss landscapes as contours and surfaces, in the manner of CPT, Figs. 2 and 6."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from bitcycle.extras import require
from bitcycle.landscape.result import Landscape, Landscapes
from bitcycle.report import draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
Kind = Literal["both", "contour", "surface", "slice"]

_INK, _GREY = "#333333", "#bdbdbd"
_PALETTE = "viridis"
_STEPS = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)  # levels in a power of ten
_MAX_LEVELS = 14
_GEOMETRIC = 5.0  # times the lowest loss, from which on levels grow in steps of a factor
_SHARE = 0.9  # of all losses that are below the highest level
_SIZE = 3.5  # inches of a panel
# Okabe and Ito: told apart with any colour vision
_LINES = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


@draw.register(Landscape)
def draw_landscape(
    landscape: Landscape, *, kind: Kind = "both", top: float | None = None
) -> Figure:
    """One alone."""
    return draw_landscapes(Landscapes((landscape,)), kind=kind, top=top)


@draw.register(Landscapes)
def draw_landscapes(
    landscapes: Landscapes, *, kind: Kind = "both", top: float | None = None
) -> Figure:
    """Side by side, on the same levels and colours.

    kind: contours above surfaces ("both"), one of them, or "slice", all in one panel along the
    first direction. top: the highest level; what is above it has its colour, and surfaces are cut
    there. Without one: where nine tenths of all losses are below.
    """
    if kind not in ("both", "contour", "surface", "slice"):
        raise ValueError(f"kind ({kind!r}) must be both, contour, surface or slice")
    module = require("matplotlib.figure", extra="report", purpose="pictures")
    if kind == "slice":
        return _draw_slices(module, landscapes)
    levels = make_levels(landscapes, top)
    rows = ["contour", "surface"] if kind == "both" else [kind]
    number = len(landscapes.items)
    figure: Figure = module.Figure(
        figsize=(_SIZE * number + 1.1, _SIZE * len(rows) + 0.5), layout="constrained"
    )
    norm = require("matplotlib.colors", extra="report", purpose="pictures").BoundaryNorm(
        levels, 256, extend="both"
    )
    for row, each in enumerate(rows):
        for column, landscape in enumerate(landscapes.items):
            place = (len(rows), number, row * number + column + 1)
            if each == "contour":
                axes = figure.add_subplot(*place)
                filled = _draw_contour(axes, landscape, levels, norm, is_first=column == 0)
            else:
                axes = figure.add_subplot(*place, projection="3d")
                filled = _draw_surface(axes, landscape, levels, norm)
            if row == 0:
                _write_title(axes, landscape)
    bar = figure.colorbar(filled, ax=figure.axes, shrink=0.8, ticks=levels, extend="both")
    is_cut = "surface" in rows and any(_highest(each) > levels[-1] for each in landscapes.items)
    cut = f" (surfaces are cut at {levels[-1]:g})" if is_cut else ""
    bar.set_label(f"loss{cut}", color=_INK)
    bar.ax.yaxis.set_major_formatter(lambda level, _: f"{level:g}")
    bar.ax.tick_params(labelsize=8, colors=_INK)
    return figure


def make_levels(landscapes: Landscapes, top: float | None = None) -> list[float]:
    """Round numbers, the same for all: a geometric row, or an even one if losses are alike."""
    losses = np.concatenate([_grid(each).ravel() for each in landscapes.items])
    losses = losses[np.isfinite(losses)]
    if losses.size == 0:
        raise ValueError("every loss of the landscapes is NaN or infinite: nothing can be drawn")
    low = float(losses.min())
    high = float(np.quantile(losses, _SHARE)) if top is None else top
    if top is not None and top <= low:
        raise ValueError(f"top ({top:g}) must be above the lowest loss, {low:g}")
    if low >= 0 and high > _GEOMETRIC * low:
        return _geometric_levels(max(low, high / 1000), high)
    if high <= low:
        return [low, low + max(1e-6, abs(low) * 1e-6)]
    ticker = require("matplotlib.ticker", extra="report", purpose="pictures")
    return [float(x) for x in ticker.MaxNLocator(_MAX_LEVELS - 1).tick_values(low, high)]


def _geometric_levels(low: float, high: float) -> list[float]:
    """The last ones up to about `high` of 1, 1.5, 2, 3, 5, 7, 10, 15, ..."""
    first = math.floor(math.log10(low)) - 1
    last = math.ceil(math.log10(high)) + 1
    numbers = [float(f"{step}e{power}") for power in range(first, last) for step in _STEPS]
    inside = [x for x in numbers if low <= x <= high * 1.001]
    return inside[-_MAX_LEVELS:] if len(inside) > 1 else [low, high]


def _grid(landscape: Landscape) -> Floats:
    return np.asarray(landscape.losses, np.float64)


def _highest(landscape: Landscape) -> float:
    losses = _grid(landscape)
    return float(losses[np.isfinite(losses)].max(initial=-math.inf))


def _write_title(axes: Axes, landscape: Landscape) -> None:
    found = landscape.sharpness
    rise = f"rise {found.rises[-1]:.3g} at radius {found.radii[-1]:g}"
    name = landscape.label if len(landscape.label) <= 36 else f"...{landscape.label[-33:]}"
    axes.set_title(
        f"{name}\n{landscape.precision}, loss {landscape.center:.3g}, {rise}",
        fontsize=9, color=_INK,
    )  # fmt: skip


def _draw_contour(
    axes: Axes, landscape: Landscape, levels: list[float], norm: Any, *, is_first: bool
) -> Any:
    heights = np.ma.masked_invalid(_grid(landscape).T)  # rows of a picture are the betas
    axes.set_facecolor(_GREY)  # shows where a loss is not finite
    filled = axes.contourf(landscape.alphas, landscape.betas, heights, levels=levels, norm=norm,
                           cmap=_PALETTE, extend="both")  # fmt: skip
    lines = axes.contour(landscape.alphas, landscape.betas, heights, levels=levels,
                         colors=_line_colours(len(levels)), linewidths=0.6)  # fmt: skip
    axes.clabel(lines, fontsize=7, fmt=lambda level: f"{level:g}")
    axes.plot(0, 0, marker="+", color="white", markersize=9, markeredgewidth=1.6)
    axes.set_aspect("equal")
    axes.locator_params(nbins=5)
    bad = landscape.num_nonfinite
    note = f"\ngrey: {bad} losses are not finite" if bad else ""
    axes.set_xlabel(f"alpha{note}", color=_INK)
    if is_first:
        axes.set_ylabel("beta", color=_INK)
    axes.tick_params(colors=_INK, labelsize=8)
    return filled


def _draw_surface(axes: Any, landscape: Landscape, levels: list[float], norm: Any) -> Any:
    heights = _grid(landscape)
    heights = np.where(np.isfinite(heights), np.minimum(heights, levels[-1]), np.nan)
    alphas, betas = np.meshgrid(landscape.alphas, landscape.betas, indexing="ij")
    surface = axes.plot_surface(alphas, betas, heights, norm=norm, cmap=_PALETTE, rstride=1,
                                cstride=1, linewidth=0.15, edgecolor="#ffffff60")  # fmt: skip
    is_near_zero = 0 < levels[0] < levels[-1] / _GEOMETRIC
    axes.set_zlim(0.0 if is_near_zero else levels[0], levels[-1])
    axes.set_xlabel("alpha", color=_INK, labelpad=-2)
    axes.set_ylabel("beta", color=_INK, labelpad=-2)
    for ticks in (axes.set_xticks, axes.set_yticks):
        ticks([landscape.alphas[0], 0.0, landscape.alphas[-1]])
    axes.tick_params(colors=_INK, labelsize=7, pad=-1)
    axes.view_init(elev=35, azim=-55)
    axes.set_box_aspect((1, 1, 0.75), zoom=1.08)
    return surface


def _line_colours(number: int) -> list[str]:
    """White on the dark half of the palette, ink on the bright one."""
    return ["white" if 2 * place < number else _INK for place in range(number)]


def _draw_slices(module: Any, landscapes: Landscapes) -> Figure:
    figure: Figure = module.Figure(figsize=(7.0, 4.0), layout="constrained")
    axes: Axes = figure.subplots()
    for place, landscape in enumerate(landscapes.items):
        line = np.ma.masked_invalid(landscape.slice())
        label = f"{landscape.label} ({landscape.precision})"
        axes.plot(landscape.alphas, line, color=_LINES[place % len(_LINES)], marker="o",
                  markersize=3, linewidth=1.4, label=label)  # fmt: skip
    axes.set_xlabel("alpha (beta = 0)", color=_INK)
    axes.set_ylabel("loss", color=_INK)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=_INK, labelsize=9)
    axes.legend(frameon=False, fontsize=9)
    return figure
