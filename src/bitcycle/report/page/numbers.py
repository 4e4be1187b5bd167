"""Numbers for charts: fewer points, fewer digits, nothing that JSON does not know."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

MOST_POINTS = 400  # of one curve
ALL_POINTS = 60_000  # of all curves of a page together
FEWEST_POINTS = 40
_PREFIXES = {"E": 1e18, "P": 1e15, "T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3}


def points_per_curve(num_curves: int) -> int:
    """How many points each of so many curves may have.

    >>> points_per_curve(3), points_per_curve(300), points_per_curve(100_000)
    (400, 200, 40)
    """
    return max(FEWEST_POINTS, min(MOST_POINTS, ALL_POINTS // max(1, num_curves)))


def thin(points: Sequence[T], limit: int) -> list[T]:
    """At most `limit` of them, evenly spread, the first and the last among them.

    >>> thin(range(9), 3), thin(range(2), 3)
    ([0, 4, 8], [0, 1])
    """
    if len(points) <= limit:
        return list(points)
    return [points[i * (len(points) - 1) // (limit - 1)] for i in range(limit)]


def plain(value: float | None) -> float | None:
    """Six significant digits; None for what is no number, which leaves a gap in a curve.

    >>> plain(0.123456789), plain(float("nan")), plain(88251968000)
    (0.123457, None, 88252000000.0)
    """
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.6g}")


def cost_unit(most: float) -> tuple[float, str]:
    """The unit in which a chart shows costs up to `most`: its size and its name.

    >>> cost_unit(8.8e12), cost_unit(600)
    ((1000000000000.0, 'TBitOPs'), (1.0, 'BitOPs'))
    """
    for prefix, size in _PREFIXES.items():
        if most >= size:
            return size, f"{prefix}BitOPs"
    return 1.0, "BitOPs"
