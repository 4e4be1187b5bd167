"""Labels next to points, placed where they overlap least.

adjustText was tried: on the same data its labels cross error bars and lines more often.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bitcycle_lab.report.figures.style import GREY, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_Box = tuple[float, float, float, float]  # left, bottom, right, top, in printer's points
_WIDTH, _HEIGHT = 0.58, 1.2  # of a character, in font sizes
_NEAR = 7.0  # printer's points from a point to its label
_PAPER = {"facecolor": "#ffffffb0", "linewidth": 0, "pad": 0.8}  # over what a label must cross
_LEADER = {"arrowstyle": "-", "color": GREY, "linewidth": 0.6}
_DIRECTIONS = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1))
_PLACES = [(across, up, ring) for ring in (1.0, 2.2, 3.6, 5.2) for across, up in _DIRECTIONS]


def label_points(
    axes: Axes,
    points: Sequence[tuple[float, float]],
    texts: Sequence[str],
    *,
    bars: Sequence[tuple[float, float, float]] = (),
    spans: Sequence[tuple[float, float, float]] = (),
    size: float = 8,
) -> None:
    """Write each text near its point, with a thin line to it if it had to move away.

    bars: (x, low, high) of error bars. spans: (left, y, right) of lines. A label avoids both.
    Call `figure.draw_without_rendering()` first: places depend on the final layout.
    """
    to_points = 72 / axes.figure.dpi

    def place(x: float, y: float) -> tuple[float, float]:
        across, up = axes.transData.transform((x, y))
        return float(across) * to_points, float(up) * to_points

    left, bottom, width, height = (end * to_points for end in axes.get_window_extent().bounds)
    frame = (left, bottom, left + width, bottom + height)
    soft = [(x - 2, y, x + 2, place(at, high)[1])
            for at, low, high in bars for x, y in [place(at, low)]]  # fmt: skip
    soft += [(x, y - 1, place(end, at)[0], y + 1)
             for start, at, end in spans for x, y in [place(start, at)]]  # fmt: skip
    hard = [(x - 4, y - 4, x + 4, y + 4) for x, y in (place(*point) for point in points)]
    for point, text in zip(points, texts, strict=True):
        x, y = place(*point)
        extent = _WIDTH * size * len(text), _HEIGHT * size
        options = [_box(x, y, spot, extent) for spot in _PLACES]
        penalties = [_penalty(box, hard, soft, frame) + 2 * i for i, box in enumerate(options)]
        best = penalties.index(min(penalties))
        left_end, low_end, right_end, _ = options[best]
        across = _PLACES[best][0]
        at = right_end if across < 0 else left_end if across > 0 else (left_end + right_end) / 2
        axes.annotate(
            text, point, xytext=(at - x, low_end - y), textcoords="offset points", fontsize=size,
            color=INK, va="bottom", ha={-1: "right", 0: "center", 1: "left"}[across],
            arrowprops=_LEADER if _PLACES[best][2] > 1 else None, bbox=_PAPER, zorder=4,
        )  # fmt: skip
        hard.append(options[best])


def _box(x: float, y: float, place: tuple[int, int, float], extent: tuple[float, float]) -> _Box:
    """The box of a text of that extent."""
    across, up, ring = place
    far, (width, height) = _NEAR * ring, extent
    left = x + (far if across > 0 else -width - far if across < 0 else -width / 2)
    bottom = y + up * far + (up - 1) * height / 2
    return left, bottom, left + width, bottom + height


def _penalty(box: _Box, hard: list[_Box], soft: list[_Box], frame: _Box) -> int:
    """Large for leaving the frame or covering a point or a label, small for crossing a bar."""
    is_outside = box[0] < frame[0] or box[2] > frame[2] or box[1] < frame[1] or box[3] > frame[3]
    covered = sum(_overlap(box, other) for other in hard)
    crossed = sum(_overlap(box, other) for other in soft)
    return 1000 * is_outside + 300 * covered + 30 * crossed


def _overlap(one: _Box, other: _Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
