"""Bits over steps: schedules, and the schedules of a study's methods."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from bitcycle.bits import Bits, PlainBits, has_format
from bitcycle.schedules import Preview, Schedule
from bitcycle.schedules.base import sort_bits
from bitcycle.schedules.segments import Segment, find_segments
from bitcycle_lab.report import draw
from bitcycle_lab.report.figures import style
from bitcycle_lab.report.figures.style import DASHED, INK, Style
from bitcycle_lab.report.runs import MethodLog

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_SEGMENTS = 1000  # of a line on the page
_ROLES = {"weight": "weights", "act": "activations", "error": "errors", "grad": "gradients"}
_SHORT = 40  # characters of a name that leave room for the numbers in the same line


# -- data -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class BitsAxis:
    """The vertical axis: whole bits, and float32 as a row of its own above the most bits.

    rows: with formats, every precision has a row of its own, from the fewest bits to the most.
    """

    ticks: tuple[float, ...]
    labels: tuple[str, ...]
    range: tuple[float, float]
    float_at: float
    rows: tuple[PlainBits, ...] = ()

    def height(self, bits: PlainBits) -> float:
        """Where bits are drawn."""
        if self.rows:
            return self.rows.index(bits)
        return self.float_at if bits is None else Bits.of(bits).order

    @property
    def tick_bits(self) -> tuple[PlainBits, ...]:
        """The bits of every tick."""
        if self.rows:
            return tuple(self.rows[int(tick)] for tick in self.ticks)
        return tuple(None if label == "fp32" else int(label) for label in self.labels)

    @property
    def title(self) -> str:
        """The name of the axis."""
        return "format" if self.rows else "bits"


@dataclass(frozen=True, kw_only=True)
class BitsLine:
    """The bits of one schedule over the run. number: decides its colour among several."""

    label: str
    segments: tuple[Segment, ...]
    number: int = 0


@dataclass(frozen=True, kw_only=True)
class BitsPanel:
    """One panel. top: the height of a dashed line, the static upper bound."""

    title: str
    note: str
    lines: tuple[BitsLine, ...]
    num_steps: int
    axis: BitsAxis
    top: float | None = None


def bits_axis(
    values: Iterable[PlainBits], *, max_ticks: int = 9, definition: Iterable[PlainBits] = ()
) -> BitsAxis:
    """The axis of all these bits, with both ends among its ticks.

    definition: bits in the order of the schedule's text, for formats with equally many bits.

    >>> bits_axis([3, 8, None]).labels
    ('3', '4', '5', '6', '7', '8', 'fp32')
    """
    found = list(values)
    if has_format(found):
        return _row_axis(sort_bits(found, definition), max_ticks)
    whole = [bits for bits in found if isinstance(bits, int)]
    low, high = min(whole, default=0), max(whole, default=0)
    stride = max(1, math.ceil((high - low) / (max_ticks - 1)))
    ticks = [*range(high, low, -stride), low][::-1] if whole else []
    if stride > 1 and len(ticks) > 2 and ticks[1] - low <= stride / 2:
        del ticks[1]  # too close to the lowest
    float_at = high + stride
    labels = [str(tick) for tick in ticks]
    if len(whole) < len(found):
        ticks, labels = [*ticks, float_at], [*labels, "fp32"]
    ends = (ticks[0] - 0.6, ticks[-1] + 0.6) if ticks else (0.0, 1.0)
    return BitsAxis(ticks=tuple(ticks), labels=tuple(labels), range=ends, float_at=float_at)


def _row_axis(rows: list[PlainBits], max_ticks: int) -> BitsAxis:
    """A row per precision; if there are too many for a tick each, the ends and some between."""
    top = len(rows) - 1
    stride = max(1, math.ceil(top / (max_ticks - 1)))
    ticks = sorted({0, *range(top, 0, -stride)})
    if stride > 1 and len(ticks) > 2 and ticks[1] <= stride / 2:
        del ticks[1]  # too close to the lowest
    return BitsAxis(
        ticks=tuple(ticks),
        labels=tuple(str(Bits.of(rows[tick])) for tick in ticks),
        range=(-0.6, top + 0.6),
        float_at=top,
        rows=tuple(rows),
    )


def preview_panel(preview: Preview) -> BitsPanel:
    """One schedule, with its mean bits and cost."""
    found = find_segments(preview.schedule, preview.total_steps)
    low, high = preview.schedule.low, preview.schedule.high
    named = preview.schedule.levels
    scale = bits_axis([low, high, *(bits for _, _, bits in found)], definition=named)
    cost = f"mean {preview.mean_bits:.2f} bits"
    if preview.relative_cost is not None:
        cost += f", cost {preview.relative_cost:.3f} of static {Bits.of(high)}"
    return BitsPanel(
        title=str(preview.schedule),
        note=cost,
        lines=(BitsLine(label=str(preview.schedule), segments=tuple(found)),),
        num_steps=preview.total_steps,
        axis=scale,
        top=scale.height(high),
    )


def method_panels(methods: Sequence[MethodLog]) -> list[BitsPanel]:
    """A panel per distinct set of schedules, titled by the methods that share it; no float32."""
    sets: dict[tuple[object, ...], list[MethodLog]] = {}
    for method in methods:
        found = method.schedules()
        if set(found) != {"fp32"}:
            own = method.method.key if method.is_adaptive() else None
            sets.setdefault((repr(found), method.num_steps, own), []).append(method)
    return [_method_panel(same) for same in sets.values()]


def _method_panel(same: Sequence[MethodLog]) -> BitsPanel:
    method = same[0]
    titles = [each.title for each in same]
    more = f" and {len(titles) - 4} more" if len(titles) > 4 else ""
    lines = []
    for number, (text, roles) in enumerate(method.schedules().items()):
        names = ", ".join(_ROLES.get(role, role) for role in roles)
        found = style.thin(method.bits(text, roles[0].partition(" ")[0]), _MOST_SEGMENTS)
        lines.append(BitsLine(label=f"{names}: {text}", segments=tuple(found), number=number))
    values = [bits for each in lines for _, _, bits in each.segments]
    return BitsPanel(
        title=", ".join(titles[:4]) + more,
        note="",
        lines=tuple(lines),
        num_steps=method.num_steps,
        axis=bits_axis(values, max_ticks=6),
    )


# -- matplotlib -----------------------------------------------------------------------------------


@draw.register(Schedule)
def draw_schedule(
    schedule: Schedule, *, total_steps: int, backward: PlainBits | Literal["default"] = "default"
) -> Figure:
    """The bits of one schedule at every step of a run."""
    return draw_previews([schedule.preview(total_steps, backward=backward)])


@draw.register(Preview)
def draw_preview(preview: Preview) -> Figure:
    """The bits of a previewed schedule."""
    return draw_previews([preview])


def draw_previews(previews: Sequence[Preview]) -> Figure:
    """Several schedules one below another, on one step axis if their runs are equally long."""
    if not previews:
        raise ValueError("nothing to draw: give at least one preview")
    is_shared = len({preview.total_steps for preview in previews}) == 1
    figure = style.new_figure(7.0, 0.55 + 1.75 * len(previews))
    grid = figure.subplots(len(previews), sharex=is_shared, squeeze=False)[:, 0]
    for number, (preview, axes) in enumerate(zip(previews, grid, strict=True), 1):
        panel = preview_panel(preview)
        is_last = not is_shared or number == len(previews)
        draw_bits(axes, panel, x="step" if is_last else "", y=panel.axis.title)
        room = "" if len(panel.title) <= _SHORT else "\n"  # a long name gets a line of its own
        axes.set_title(f"{panel.title}{room}", loc="left", fontsize=10, color=INK, weight="bold")
        axes.set_title(panel.note, loc="right", fontsize=9, color=INK)
    figure.align_ylabels()
    return figure


def draw_panel(panel: BitsPanel) -> Figure:
    """One panel as a small figure, without its title."""
    figure = style.new_figure(4.0, 2.2)
    axes = figure.subplots()
    draw_bits(axes, panel, y=panel.axis.title)
    axes.locator_params(axis="x", nbins=4)
    return figure


def draw_bits(axes: Axes, panel: BitsPanel, *, x: str = "step", y: str = "bits") -> None:
    """One line filled, or several in their colours, static ones as broad bands below the others."""
    for each in panel.lines:
        color, is_static = Style(each.number).color, len(each.segments) == 1
        if len(panel.lines) == 1:
            draw_line(axes, each, panel.axis, fill=f"{color}33", color=color, linewidth=1.4)
        else:
            draw_line(
                axes, each, panel.axis, color=color, label=style.plain_text(each.label),
                linewidth=6.0 if is_static else 1.6, alpha=0.4 if is_static else 1.0,
                zorder=2 if is_static else 3,
            )  # fmt: skip
    if panel.top is not None:
        axes.axhline(panel.top, color=INK, linewidth=0.8, linestyle=DASHED, alpha=0.7, zorder=0.5)
    style.style_axes(axes, x=x, y=y, grid="y")
    axes.set_xlim(0, max(1, panel.num_steps))
    axes.set_ylim(*panel.axis.range)
    axes.set_yticks(panel.axis.ticks, panel.axis.labels)
    style.format_steps(axes)


def draw_line(
    axes: Axes, line: BitsLine, scale: BitsAxis, *, fill: str = "", **options: Any
) -> None:
    """The bits of one schedule as steps. fill: the colour below the line."""
    if line.segments:
        heights = [scale.height(bits) for _, _, bits in line.segments]
        edges = [line.segments[0][0], *(end for _, end, _ in line.segments)]
        if fill:
            axes.stairs(heights, edges, baseline=scale.range[0], fill=True, color=fill, linewidth=0)
        axes.stairs(heights, edges, baseline=None, **options)
