"""How methods are told apart: colour, dash and marker, and the same as a sample for the legend.

The colours are Okabe's and Ito's, which any colour vision tells apart; as numbers they are CSS
variables, because black and white change places with the theme.
"""

from __future__ import annotations

from dataclasses import dataclass

from bitcycle.report.page.escape import Html, tag

NUM_COLOURS = 7
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_PATTERNS = ("", "7 4", "2 3", "7 3 2 3", "12 4", "12 3 2 3")  # the same in SVG
_MARKERS = ("square", "circle", "diamond", "triangle-up", "triangle-down", "cross", "x", "star")
_SHAPES = (  # around (0, 0), about 10 wide
    "M-4-4H4V4H-4Z",
    "M-5 0A5 5 0 1 0 5 0A5 5 0 1 0-5 0Z",
    "M0-6 6 0 0 6-6 0Z",
    "M0-5 5 4H-5Z",
    "M0 5 5-4H-5Z",
    "M-2-5H2V-2H5V2H2V5H-2V2H-5V-2H-2Z",
    "M-5-3-3-5 0-2 3-5 5-3 2 0 5 3 3 5 0 2-3 5-5 3-2 0Z",
    "M0-6 1.5-2H6L2.5 1 4 5 0 2.5-4 5-2.5 1-6-2H-1.5Z",
)


@dataclass(frozen=True)
class Look:
    """Of the method with this number in its group; all three repeat, together only after 168."""

    number: int

    @property
    def colour(self) -> str:
        """For charts; the page's script puts the theme's value in."""
        return colour(self.number)

    @property
    def dash(self) -> str:
        """plotly's name."""
        return _DASHES[self.number % len(_DASHES)]

    @property
    def marker(self) -> str:
        """plotly's name."""
        return _MARKERS[self.number % len(_MARKERS)]

    def sample(self) -> Html:
        """A line with a marker, as SVG."""
        stroke = f"var(--c{self.number % NUM_COLOURS})"
        line = tag(
            "path", d="M0 8H36", stroke=stroke, stroke_width=2, fill="none",
            stroke_dasharray=_PATTERNS[self.number % len(_PATTERNS)] or None,
        )  # fmt: skip
        shape = tag(
            "path", d=_SHAPES[self.number % len(_SHAPES)], fill=stroke, transform="translate(18 8)"
        )
        return tag("svg", line, shape, width=36, height=16, aria_hidden="true")


def colour(number: int, alpha: float | None = None) -> str:
    """A colour of the theme, as the page's script reads it.

    >>> colour(0), colour(8, 0.1)
    ('var(--c0)', 'var(--c1)/0.1')
    """
    name = f"var(--c{number % NUM_COLOURS})"
    return name if alpha is None else f"{name}/{alpha:g}"
