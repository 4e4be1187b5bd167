"""Loss landscapes as contours, surfaces and slices, in the manner of CPT, Figs. 2 and 6."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from bitcycle.extras import require
from bitcycle.landscape.result import Landscape, Landscapes
from bitcycle.report import draw
from bitcycle.report.figures import style
from bitcycle.report.figures.style import INK, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
Kind = Literal["both", "contour", "surface", "slice"]

_STEPS = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)  # levels in a power of ten
_MAX_LEVELS = 14
_GEOMETRIC = 5.0  # times the lowest loss, from which on levels grow by a factor
_SHARE = 0.9  # of all losses that are below the highest level
_PALETTE = "viridis"
_SIZE = 3.5  # inches of a panel


# -- data -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LandscapePanel:
    """One surface. losses[i, j]: at (alphas[i], betas[j]); NaN where it is not finite."""

    title: str
    note: str
    alphas: tuple[float, ...]
    betas: tuple[float, ...]
    losses: Floats
    num_nonfinite: int
    slice: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class LandscapePanels:
    """Surfaces side by side on the same levels. is_cut: a loss is above the highest level."""

    panels: tuple[LandscapePanel, ...]
    levels: tuple[float, ...]
    is_cut: bool


def landscape_panels(
    landscapes: Landscapes, *, top: float | None = None, levels: Sequence[float] = ()
) -> LandscapePanels:
    """The panels of the landscapes. top: the highest level, if no levels are given."""
    levels = levels or make_levels(landscapes, top)
    panels = tuple(map(_panel, landscapes.items))
    highest = max(float(np.nanmax(panel.losses, initial=-math.inf)) for panel in panels)
    return LandscapePanels(panels=panels, levels=tuple(levels), is_cut=highest > levels[-1])


def _panel(item: Landscape) -> LandscapePanel:
    losses = np.asarray(item.losses, np.float64)
    found = item.sharpness
    rise = f"rise {found.rises[-1]:.3g} at radius {found.radii[-1]:g}"
    return LandscapePanel(
        title=style.plain_text(item.label),
        note=f"{item.precision}, loss {item.center:.3g}, {rise}",
        alphas=item.alphas,
        betas=item.betas,
        losses=np.where(np.isfinite(losses), losses, np.nan),
        num_nonfinite=item.num_nonfinite,
        slice=item.slice(),
    )


def make_levels(landscapes: Landscapes, top: float | None = None) -> list[float]:
    """Round levels common to all landscapes: geometric, or evenly spaced if the losses are alike.

    Without `top` the highest level is that which nine tenths of all losses are below.
    """
    losses = np.concatenate([np.ravel(item.losses) for item in landscapes.items])
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


# -- matplotlib -----------------------------------------------------------------------------------


@draw.register(Landscape)
def draw_landscape(
    landscape: Landscape,
    *,
    kind: Kind = "both",
    top: float | None = None,
    levels: Sequence[float] = (),
) -> Figure:
    """Draw one landscape. levels: of the contours, instead of those found from its losses."""
    return draw_landscapes(Landscapes((landscape,)), kind=kind, top=top, levels=levels)


@draw.register(Landscapes)
def draw_landscapes(
    landscapes: Landscapes,
    *,
    kind: Kind = "both",
    top: float | None = None,
    levels: Sequence[float] = (),
) -> Figure:
    """Landscapes side by side, on the same levels and colours.

    kind: contours above surfaces ("both"), one of them, or "slice": all in one panel along the
    first direction. top: the highest level; surfaces are cut there. levels: all of them.
    """
    if kind not in get_args(Kind):
        raise ValueError(f"kind ({kind!r}) must be both, contour, surface or slice")
    data = landscape_panels(landscapes, top=top, levels=levels)
    if kind == "slice":
        return _draw_slices(data)
    rows = ["contour", "surface"] if kind == "both" else [kind]
    number = len(data.panels)
    figure = style.new_figure(_SIZE * number + 1.1, _SIZE * len(rows) + 0.5)
    colors = require("matplotlib.colors", extra="report", purpose="pictures")
    norm = colors.BoundaryNorm(data.levels, 256, extend="both")
    for row, each in enumerate(rows):
        for column, panel in enumerate(data.panels):
            place = (len(rows), number, row * number + column + 1)
            if each == "contour":
                axes = figure.add_subplot(*place)
                filled = _draw_contour(axes, panel, data.levels, norm, y="" if column else "beta")
            else:
                axes = figure.add_subplot(*place, projection="3d")
                filled = _draw_surface(axes, panel, data.levels, norm)
            if row == 0:
                name = panel.title if len(panel.title) <= 36 else f"...{panel.title[-33:]}"
                axes.set_title(f"{name}\n{panel.note}", fontsize=9, color=INK)
    bar = figure.colorbar(filled, ax=figure.axes, shrink=0.8, ticks=data.levels, extend="both")
    is_cut = "surface" in rows and data.is_cut
    cut = f" (surfaces are cut at {data.levels[-1]:g})" if is_cut else ""
    bar.set_label(f"loss{cut}", color=INK)
    bar.ax.yaxis.set_major_formatter(lambda level, _: f"{level:g}")
    bar.ax.tick_params(labelsize=8, colors=INK)
    return figure


def _draw_contour(
    axes: Axes, panel: LandscapePanel, levels: tuple[float, ...], norm: Any, *, y: str
) -> Any:
    heights = np.ma.masked_invalid(panel.losses.T)  # rows of a picture are the betas
    axes.set_facecolor("#bdbdbd")  # shows where a loss is not finite
    filled = axes.contourf(
        panel.alphas, panel.betas, heights, levels=levels, norm=norm, cmap=_PALETTE, extend="both"
    )
    # white lines on the dark half of the palette
    colors = ["white" if 2 * place < len(levels) else INK for place in range(len(levels))]
    lines = axes.contour(
        panel.alphas, panel.betas, heights, levels=levels, colors=colors, linewidths=0.6
    )
    axes.clabel(lines, fontsize=7, fmt=lambda level: f"{level:g}")
    axes.plot(0, 0, marker="+", color="white", markersize=9, markeredgewidth=1.6)
    axes.set_aspect("equal")
    axes.locator_params(nbins=5)
    bad = panel.num_nonfinite
    axes.set_xlabel(f"alpha\ngrey: {bad} losses are not finite" if bad else "alpha", color=INK)
    axes.set_ylabel(y, color=INK)
    axes.tick_params(colors=INK, labelsize=8)
    return filled


def _draw_surface(axes: Any, panel: LandscapePanel, levels: tuple[float, ...], norm: Any) -> Any:
    alphas, betas = np.meshgrid(panel.alphas, panel.betas, indexing="ij")
    surface = axes.plot_surface(
        alphas, betas, np.minimum(panel.losses, levels[-1]), norm=norm, cmap=_PALETTE, rstride=1,
        cstride=1, linewidth=0.15, edgecolor="#ffffff60",
    )  # fmt: skip
    is_near_zero = 0 < levels[0] < levels[-1] / _GEOMETRIC
    axes.set_zlim(0.0 if is_near_zero else levels[0], levels[-1])
    axes.set_xlabel("alpha", color=INK, labelpad=-2)
    axes.set_ylabel("beta", color=INK, labelpad=-2)
    for ticks in (axes.set_xticks, axes.set_yticks):
        ticks([panel.alphas[0], 0.0, panel.alphas[-1]])
    axes.tick_params(colors=INK, labelsize=7, pad=-1)
    axes.view_init(elev=35, azim=-55)
    axes.set_box_aspect((1, 1, 0.75), zoom=1.08)
    return surface


def _draw_slices(data: LandscapePanels) -> Figure:
    figure = style.new_figure(7.0, 4.0)
    axes = figure.subplots()
    for number, panel in enumerate(data.panels):
        axes.plot(
            panel.alphas, np.ma.masked_invalid(panel.slice), color=Style(number).color, marker="o",
            markersize=3, linewidth=1.4, label=f"{panel.title} ({panel.note.partition(',')[0]})",
        )  # fmt: skip
    style.style_axes(axes, x="alpha (beta = 0)", y="loss")
    axes.legend(frameon=False, fontsize=9)
    return figure
