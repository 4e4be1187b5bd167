"""Schedules as a picture: bits over steps, one panel each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from bitcycle.extras import require
from bitcycle.report import draw
from bitcycle.schedules import Bits, Preview, Schedule
from bitcycle.schedules.checks import bits_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK, _LINE, _FILL = "#333333", "#1f4e9c", "#c9d8f0"
_MAX_TICKS = 9
_SHORT_NAME = 40  # characters that leave room for the numbers beside them


@draw.register(Schedule)
def draw_schedule(schedule: Schedule, *, total_steps: int, backward: Bits = 8) -> Figure:
    """The bits of one schedule at every step of a run."""
    return draw_previews([schedule.preview(total_steps, backward=backward)])


@draw.register(Preview)
def draw_preview(preview: Preview) -> Figure:
    """The bits of a previewed schedule."""
    return draw_previews([preview])


def draw_previews(previews: Sequence[Preview]) -> Figure:
    """Several schedules one under another, on one step axis when their runs are equally long."""
    if not previews:
        raise ValueError("nothing to draw: give at least one preview")
    figure_module = require("matplotlib.figure", extra="report", purpose="pictures")
    is_shared = len({preview.total_steps for preview in previews}) == 1
    height = 0.55 + 1.75 * len(previews)
    figure: Figure = figure_module.Figure(figsize=(7.0, height), layout="constrained")
    panels = figure.subplots(len(previews), sharex=is_shared, squeeze=False)[:, 0]
    for number, (preview, axes) in enumerate(zip(previews, panels, strict=True), 1):
        _draw_panel(axes, preview)
        if not is_shared or number == len(previews):
            axes.set_xlabel("step", color=_INK)
    figure.align_ylabels()
    return figure


def _draw_panel(axes: Axes, preview: Preview) -> None:
    values = preview.schedule.values(preview.total_steps)
    whole = [bits for bits in (*values, preview.schedule.low, preview.schedule.high) if bits]
    # float32 gets a row of its own, far enough above the numbers for its label
    spread = max(whole, default=0) - min(whole, default=0)
    float_at = max(whole, default=0) + max(1, -(-spread // (_MAX_TICKS - 1)))
    heights, edges = [], [0]
    for bits, run in groupby(values):
        heights.append(float_at if bits is None else bits)
        edges.append(edges[-1] + sum(1 for _ in run))
    floor = min(whole, default=float_at) - 0.6
    axes.stairs(heights, edges, baseline=floor, fill=True, color=_FILL, linewidth=0)
    axes.stairs(heights, edges, baseline=None, color=_LINE, linewidth=1.4)

    top = preview.schedule.high
    top_at = float_at if top is None else top
    axes.axhline(top_at, color=_INK, linewidth=0.8, linestyle=(0, (4, 3)), alpha=0.7, zorder=0.5)
    axes.set_xlim(0, preview.total_steps)
    axes.set_ylim(floor, top_at + 0.6)
    ticks = _ticks(whole)
    labels = [str(bits) for bits in ticks]
    if None in values or top is None:
        ticks, labels = [*ticks, float_at], [*labels, "fp32"]
    axes.set_yticks(ticks, labels)
    axes.set_ylabel("bits", color=_INK)
    axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=_INK, labelsize=9)
    name = str(preview.schedule)
    cost = f"mean {preview.mean_bits:.2f} bits, cost {preview.relative_cost:.3f}"
    room = "" if len(name) <= _SHORT_NAME else "\n"  # a long name gets a line of its own
    axes.set_title(f"{name}{room}", loc="left", fontsize=10, color=_INK, fontweight="bold")
    axes.set_title(f"{cost} of static {bits_text(top)}", loc="right", fontsize=9, color=_INK)


def _ticks(whole: Sequence[int]) -> list[int]:
    """Whole numbers from the least to the most, at most nine and both ends among them."""
    if not whole:
        return []
    low, high = min(whole), max(whole)
    stride = -(-(high - low) // (_MAX_TICKS - 1)) or 1
    ticks = [*range(high, low, -stride), low][::-1]
    is_crowded = stride > 1 and len(ticks) > 2 and ticks[1] - low <= stride / 2
    return [low, *ticks[2:]] if is_crowded else ticks
