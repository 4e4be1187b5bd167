"""Number formats: the values of their elements, and the rounding error against magnitude."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from bitcycle.formats.catalogue import Format
from bitcycle.formats.rounding import round_to
from bitcycle_lab.report import draw
from bitcycle_lab.report.figures import style
from bitcycle_lab.report.figures.style import INK, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OCTAVES = 20  # below the largest value of the block
POINTS = 64  # per octave
MOST_TICKS = 400  # more values of an element are a solid band
FEW_VALUES = 40  # these fit on a linear axis


# -- data -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FormatPanel:
    """What is drawn of formats that have the same elements.

    values: of an element, not negative. magnitudes: relative to the largest value of their block,
    ascending. errors: |rounded - x| / x at each magnitude. octave_errors: the largest of them in
    each octave, from the lowest.
    """

    title: str
    note: str
    values: tuple[float, ...]
    magnitudes: tuple[float, ...]
    errors: tuple[float, ...]
    octave_errors: tuple[float, ...]

    @property
    def shares(self) -> tuple[float, ...]:
        """The values relative to the largest, without those that the axis does not reach."""
        shares = (value / self.values[-1] for value in self.values)
        return tuple(share for share in shares if share >= self.magnitudes[0])


def format_panel(format: Format, octaves: int = OCTAVES) -> FormatPanel:
    """The grid of a format and its error, in blocks whose largest value is the format's."""
    top = format.max_value
    steps = torch.arange(-octaves * POINTS, 0, dtype=torch.float64)
    values = torch.tensor(format.values, dtype=torch.float64)
    middles = (values[1:] + values[:-1]) / 2  # where the error is largest
    middles = middles[middles >= top * 2.0**-octaves]
    x = torch.cat((torch.exp2(steps / POINTS) * top, middles)).float().sort().values
    block = torch.stack((x, torch.full_like(x, top)), dim=1)  # (magnitudes, 2)
    rounded = round_to(block, format)[:, 0].double()
    x = x.double()
    errors = (rounded - x).abs() / x
    octave = (x / top).log2().floor().long() + octaves
    largest = torch.zeros(octaves, dtype=torch.float64).scatter_reduce(0, octave, errors, "amax")
    return FormatPanel(
        title=format.name,
        note=format.describe(),
        values=format.values,
        magnitudes=tuple((x / top).tolist()),
        errors=tuple(errors.tolist()),
        octave_errors=tuple(largest.tolist()),
    )


def element_panels(formats: Iterable[Format], octaves: int = OCTAVES) -> list[FormatPanel]:
    """A panel for each kind of element, titled by the formats that have it."""
    groups: dict[str, list[Format]] = {}
    for each in formats:
        groups.setdefault(each.element, []).append(each)
    panels = []
    for element, same in groups.items():
        panel = format_panel(same[0], octaves)
        names = ", ".join(each.name for each in same)
        title = names if names == element else f"{element}: {names}"
        panels.append(replace(panel, title=title, note=f"{same[0].bits} bits"))
    return panels


# -- matplotlib -----------------------------------------------------------------------------------


@draw.register(Format)
def draw_format(format: Format, *, octaves: int = OCTAVES) -> Figure:
    """The values of an element, and the relative error in a block with the largest one."""
    panel = format_panel(format, octaves)
    figure = style.new_figure(7.0, 3.6)
    grid, errors = figure.subplots(2, height_ratios=(1, 3))
    is_linear = len(panel.values) <= FEW_VALUES
    _draw_values(grid, panel.values if is_linear else panel.values[1:], 0, Style(0).color)
    if not is_linear:
        grid.set_xscale("log", base=2)
    style.style_axes(grid, x="value of an element", grid="x")
    grid.set_yticks([])
    grid.spines["left"].set_visible(False)
    errors.plot(panel.magnitudes, panel.errors, color=Style(0).color, linewidth=1.0)
    _finish_errors(errors)
    grid.set_title(panel.title, loc="left", fontsize=10, color=INK, weight="bold")
    grid.set_title(panel.note, loc="right", fontsize=9, color=INK)
    return figure


def draw_formats(formats: Sequence[Format], *, octaves: int = OCTAVES) -> Figure:
    """Several formats: the grid of each kind of element above, the largest errors below."""
    if not formats:
        raise ValueError("nothing to draw: give at least one format")
    panels = element_panels(formats, octaves)
    figure = style.new_figure(9.0, 3.6 + 0.3 * len(panels))
    grids, errors = figure.subplots(2, sharex=True, height_ratios=(0.3 * len(panels), 2.6))
    edges = [2.0**exponent for exponent in range(-octaves, 1)]
    for number, panel in enumerate(panels):
        look = Style(number)
        _draw_values(grids, panel.shares, -number, look.color)
        errors.stairs(
            panel.octave_errors, edges, baseline=None, color=look.color, linestyle=look.dash[0],
            linewidth=1.6, label=f"{panel.title} ({panel.note})",
        )  # fmt: skip
    style.style_axes(grids, title="values of an element, relative to the largest", grid="x")
    grids.set_yticks([-number for number in range(len(panels))], [each.title for each in panels])
    grids.tick_params(labelbottom=False)
    grids.spines["left"].set_visible(False)
    errors.set_title("largest relative error of each octave", loc="left", fontsize=9.5, color=INK)
    _finish_errors(errors)
    errors.set_xlim(edges[0], 1.1)
    errors.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _draw_values(axes: Axes, values: Sequence[float], height: float, color: str) -> None:
    """A tick for every value, or a band if there are too many."""
    if len(values) > MOST_TICKS:
        axes.fill_between([values[0], values[-1]], height - 0.3, height + 0.3, color=color, lw=0)
    else:
        axes.vlines(values, height - 0.3, height + 0.3, color=color, linewidth=0.8)


def _finish_errors(axes: Axes) -> None:
    """Logarithmic axes, errors as powers of two up to 1 (everything is lost)."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_ylim(2.0**-13, 1.4)
    axes.set_yticks([2.0**-exponent for exponent in range(0, 13, 2)])
    style.style_axes(
        axes, x="magnitude, relative to the largest value of the block", y="relative error"
    )
    axes.minorticks_off()
