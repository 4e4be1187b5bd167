"""What all figures share: colours, markers, axes and text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from bitcycle.extras import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

T = TypeVar("T")

INK, GREY, GRID = "#333333", "#999999", "#dddddd"
DASHED, DOTTED = (0, (4, 3)), (0, (1, 2))
# Okabe and Ito: distinct for every colour vision
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = (  # matplotlib, SVG path around (0, 0) about 10 wide
    ("s", "M-4-4H4V4H-4Z"),
    ("o", "M-5 0A5 5 0 1 0 5 0A5 5 0 1 0-5 0Z"),
    ("D", "M0-6 6 0 0 6-6 0Z"),
    ("^", "M0-5 5 4H-5Z"),
    ("v", "M0 5 5-4H-5Z"),
    ("P", "M-2-5H2V-2H5V2H2V5H-2V2H-5V-2H-2Z"),
    ("X", "M-5-3-3-5 0-2 3-5 5-3 2 0 5 3 3 5 0 2-3 5-5 3-2 0Z"),
    ("*", "M0-6 1.5-2H6L2.5 1 4 5 0 2.5-4 5-2.5 1-6-2H-1.5Z"),
)
DASHES: tuple[tuple[Any, str], ...] = (  # matplotlib, SVG stroke-dasharray
    ("-", ""),
    ((0, (5, 2)), "7 4"),
    ((0, (1, 1.5)), "2 3"),
    ((0, (5, 2, 1, 2)), "7 3 2 3"),
    ((0, (9, 3)), "12 4"),
    ((0, (9, 3, 1, 3)), "12 3 2 3"),
)


@dataclass(frozen=True)
class Style:
    """Colour, marker and dash of the method with this number; all three repeat after 168."""

    number: int

    @property
    def color(self) -> str:
        """A hexadecimal colour."""
        return COLORS[self.number % len(COLORS)]

    @property
    def marker(self) -> tuple[str, str]:
        """For matplotlib, and as an SVG path."""
        return MARKERS[self.number % len(MARKERS)]

    @property
    def dash(self) -> tuple[Any, str]:
        """For matplotlib and for SVG."""
        return DASHES[self.number % len(DASHES)]


# -- numbers and text -----------------------------------------------------------------------------


def thin(points: Sequence[T], limit: int) -> list[T]:
    """At most `limit` of the points, evenly spaced, with the first and the last.

    >>> thin(range(9), 3), thin(range(2), 3)
    ([0, 4, 8], [0, 1])
    """
    if len(points) <= limit:
        return list(points)
    return [points[i * (len(points) - 1) // (limit - 1)] for i in range(limit)]


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


def plain_text(text: str) -> str:
    """A user's text as matplotlib draws it: no formula, and only characters that XML has.

    >>> print(plain_text("$x$"), plain_text("a\\udcffb"), plain_text("a\\nb"))
    \\$x\\$ a?b a b
    """
    drawn = "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)
    drawn = f" {drawn}" if drawn.startswith("_") else drawn  # else it is left out of legends
    return drawn.replace("$", r"\$")


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
    axes.set_facecolor("none")  # the page has a background of its own
    if title:
        axes.set_title(title, loc="left", fontsize=9.5, color=INK)
    axes.grid(axis=grid, color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=size)


def format_steps(axes: Axes) -> None:
    """Write the steps on the x axis with thousands separators."""
    axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")
