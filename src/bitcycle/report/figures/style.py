"""What all figures share: colours, markers, axes, and plotly figures as plain dicts.

A plotly figure is data of the report page. Its colours are CSS variables such as `var(--c0)` or
`var(--ink)/0.3`, which the page's script resolves, so that charts follow the light or dark theme.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from bitcycle.extras import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

T = TypeVar("T")
Chart = dict[str, Any]  # a plotly figure: data and layout

INK, GREY, GRID = "#333333", "#999999", "#dddddd"
DASHED, DOTTED = (0, (4, 3)), (0, (1, 2))
# Okabe and Ito: distinct for every colour vision. --c0 to --c6 in style.css
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = (  # matplotlib, plotly, SVG path around (0, 0) about 10 wide
    ("s", "square", "M-4-4H4V4H-4Z"),
    ("o", "circle", "M-5 0A5 5 0 1 0 5 0A5 5 0 1 0-5 0Z"),
    ("D", "diamond", "M0-6 6 0 0 6-6 0Z"),
    ("^", "triangle-up", "M0-5 5 4H-5Z"),
    ("v", "triangle-down", "M0 5 5-4H-5Z"),
    ("P", "cross", "M-2-5H2V-2H5V2H2V5H-2V2H-5V-2H-2Z"),
    ("X", "x", "M-5-3-3-5 0-2 3-5 5-3 2 0 5 3 3 5 0 2-3 5-5 3-2 0Z"),
    ("*", "star", "M0-6 1.5-2H6L2.5 1 4 5 0 2.5-4 5-2.5 1-6-2H-1.5Z"),
)
DASHES: tuple[tuple[Any, str, str], ...] = (  # matplotlib, plotly, SVG stroke-dasharray
    ("-", "solid", ""),
    ((0, (5, 2)), "dash", "7 4"),
    ((0, (1, 1.5)), "dot", "2 3"),
    ((0, (5, 2, 1, 2)), "dashdot", "7 3 2 3"),
    ((0, (9, 3)), "longdash", "12 4"),
    ((0, (9, 3, 1, 3)), "longdashdot", "12 3 2 3"),
)


@dataclass(frozen=True)
class Style:
    """Colour, marker and dash of the method with this number; all three repeat after 168."""

    number: int

    @property
    def color(self) -> str:
        """For matplotlib."""
        return COLORS[self.number % len(COLORS)]

    @property
    def marker(self) -> tuple[str, str, str]:
        """For matplotlib, for plotly, and as an SVG path."""
        return MARKERS[self.number % len(MARKERS)]

    @property
    def dash(self) -> tuple[Any, str, str]:
        """For matplotlib, for plotly, and for SVG."""
        return DASHES[self.number % len(DASHES)]

    def css(self, alpha: float | None = None) -> str:
        """The colour on the page.

        >>> Style(0).css(), Style(8).css(0.1)
        ('var(--c0)', 'var(--c1)/0.1')
        """
        name = f"var(--c{self.number % len(COLORS)})"
        return name if alpha is None else f"{name}/{alpha:g}"


# -- numbers --------------------------------------------------------------------------------------


def thin(points: Sequence[T], limit: int) -> list[T]:
    """At most `limit` of the points, evenly spaced, with the first and the last.

    >>> thin(range(9), 3), thin(range(2), 3)
    ([0, 4, 8], [0, 1])
    """
    if len(points) <= limit:
        return list(points)
    return [points[i * (len(points) - 1) // (limit - 1)] for i in range(limit)]


def rounded(value: float | None) -> float | None:
    """Six significant digits; None, a gap in plotly, for what is not finite.

    >>> rounded(0.123456789), rounded(float("nan")), rounded(88251968000)
    (0.123457, None, 88252000000.0)
    """
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.6g}")


def padded(values: Iterable[float], share: float = 0.1) -> tuple[float, float]:
    """The range of the values with room at both ends.

    >>> padded([0.0, 10.0]), padded([3.0])
    ((-1.0, 11.0), (2.5, 3.5))
    """
    found = list(values)
    room = share * (max(found) - min(found)) or 0.5
    return min(found) - room, max(found) + room


def counted(numbers: Iterable[int], noun: str) -> str:
    """A number of things, as one number or a range.

    >>> counted([5, 5], "seed"), counted([3, 5], "seed"), counted([1], "seed")
    ('5 seeds', '3 to 5 seeds', '1 seed')
    """
    found = sorted(set(numbers))
    text = str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"
    return f"{text} {noun}{'' if found == [1] else 's'}"


# -- matplotlib -----------------------------------------------------------------------------------


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches."""
    module = require("matplotlib.figure", extra="report", purpose="pictures")
    figure: Figure = module.Figure(figsize=(width, height), layout="constrained")
    return figure


def style_axes(
    axes: Axes,
    *,
    x: str = "",
    y: str = "",
    title: str = "",
    grid: Literal["both", "x", "y"] = "both",
    size: float = 9,
) -> None:
    """Set axis titles, a light grid and no frame. size: of the tick labels."""
    axes.set_xlabel(x, color=INK)
    axes.set_ylabel(y, color=INK)
    if title:
        axes.set_title(title, loc="left", fontsize=9.5, color=INK)
    axes.grid(axis=grid, color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=size)


def format_steps(axes: Axes) -> None:
    """Write the steps on the x axis with thousands separators."""
    axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")


# -- plotly ---------------------------------------------------------------------------------------


def chart(traces: Iterable[Mapping[str, Any]], *, height: int, **layout: Any) -> Chart:
    """A plotly figure. The page's script adds fonts, margins and the colours of the axes."""
    drawn = {"height": height, "showlegend": False, **layout}
    return {"data": [dict(trace) for trace in traces], "layout": drawn}


def line(points: Iterable[tuple[float, float | None]], **options: Any) -> dict[str, Any]:
    """A line through (x, y); None is a gap."""
    pairs = list(points)
    return {
        "type": "scatter", "mode": "lines", **options,
        "x": [rounded(x) for x, _ in pairs], "y": [rounded(y) for _, y in pairs],
    }  # fmt: skip


def axis(title: str, **options: Any) -> dict[str, Any]:
    """An axis with its title as plain text."""
    return {"title": {"text": plain_text(title)}, **options}


def plain_text(text: object) -> str:
    """Text for plotly, which would read <b>, <a> and %{x} as markup.

    >>> plain_text("<b>%{x}")
    '&lt;b&gt;%&#123;x}'
    """
    return html.escape(str(text), quote=False).replace("%{", "%&#123;")
