"""How sharp a minimum is, in numbers that are read off the grid of a landscape.

rise(r): the mean of loss - loss(0, 0) over the circle of radius r, at 720 equally spaced angles,
with bilinear interpolation between grid points. area_below(level): the area, in units of alpha x
beta (the whole grid of extent 1 has 4), where the loss is at most `level`; each cell is divided
into four triangles that meet in its middle (the mean of its corners) with linear interpolation in
each, so that the area is exact for a plane. A wider minimum has a smaller rise and a larger area.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

NUM_ANGLES = 720
RADII = (0.25, 0.5, 1.0)
RISE = 1.0  # the level of a landscape's own area: this much above its centre

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Sharpness:
    """rises[k] is the mean rise at radii[k]; area is that below `level`."""

    radii: tuple[float, ...]
    rises: tuple[float, ...]
    level: float
    area: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def measure_sharpness(
    values: Sequence[float],
    losses: Sequence[Sequence[float]],
    *,
    radii: Sequence[float] = (),
    level: float | None = None,
) -> Sharpness:
    """The numbers of a grid: `values` are its alphas and betas, `losses[i][j]` belongs to both.

    Without radii: those of 0.25, 0.5 and 1 that fit the grid. Without a level: 1 above the centre.
    """
    extent = values[-1]
    radii = tuple(radii) or tuple(r for r in RADII if r <= extent) or (extent,)
    middle = len(values) // 2
    level = losses[middle][middle] + RISE if level is None else level
    return Sharpness(
        radii=radii,
        rises=tuple(mean_rise(values, losses, radius) for radius in radii),
        level=level,
        area=area_below(values, losses, level),
    )


def mean_rise(values: Sequence[float], losses: Sequence[Sequence[float]], radius: float) -> float:
    """Mean of loss - loss(0, 0) on a circle; infinite if it touches a loss that is not finite.

    >>> mean_rise((-1.0, 0.0, 1.0), [[3, 3, 3], [1, 1, 1], [3, 3, 3]], 1.0)  # 2 |alpha|
    1.2732...
    """
    extent, grid = values[-1], np.asarray(losses, np.float64)
    if not 0 < radius <= extent:
        raise ValueError(f"radius ({radius}) must be above 0 and at most {extent}, the grid's own")
    angles = np.arange(NUM_ANGLES) * (2 * math.pi / NUM_ANGLES)
    middle = len(values) // 2
    heights = _bilinear(grid, *(_index(radius * f(angles), values) for f in (np.cos, np.sin)))
    rises = heights - grid[middle, middle]
    return float(rises.mean()) if np.isfinite(rises).all() else math.inf


def _index(x: Floats, values: Sequence[float]) -> Floats:
    """Where a coordinate lies between the grid's lines, counted in lines."""
    last = len(values) - 1
    return np.clip((x / values[-1] + 1) / 2 * last, 0, last)


def _bilinear(grid: Floats, row: Floats, column: Floats) -> Floats:
    i = np.minimum(row.astype(int), len(grid) - 2)
    j = np.minimum(column.astype(int), len(grid) - 2)
    u, v = row - i, column - j
    low = _between(grid[i, j], grid[i, j + 1], v)
    high = _between(grid[i + 1, j], grid[i + 1, j + 1], v)
    return _between(low, high, u)


def _between(a: Floats, b: Floats, t: Floats) -> Floats:
    """a (1 - t) + b t; where t is 0, b does not count, not even an infinite one."""
    with np.errstate(invalid="ignore"):
        return np.where(t > 0, a * (1 - t) + b * t, a)


def area_below(values: Sequence[float], losses: Sequence[Sequence[float]], level: float) -> float:
    """The area with a loss of at most `level`; cells with a corner that is not finite have none.

    >>> area_below((-1.0, 0.0, 1.0), [[-1, -1, -1], [0, 0, 0], [1, 1, 1]], 0.5)  # alpha
    3.0
    """
    grid = np.asarray(losses, np.float64)
    a, b, c, d = grid[:-1, :-1], grid[:-1, 1:], grid[1:, 1:], grid[1:, :-1]  # around each cell
    with np.errstate(invalid="ignore"):
        middle = (a + b + c + d) / 4
    shares = sum(_share_below(p, q, middle, level) for p, q in ((a, b), (b, c), (c, d), (d, a)))
    cell = (values[1] - values[0]) ** 2
    return float(np.sum(shares) / 4 * cell)


def _share_below(p: Floats, q: Floats, r: Floats, level: float) -> Floats:
    """The share of each triangle with these heights at its corners that is at most `level`."""
    low, mid, high = np.sort(np.stack([p, q, r]), axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        from_below = (level - low) ** 2 / ((mid - low) * (high - low))
        from_above = 1 - (high - level) ** 2 / ((high - mid) * (high - low))
    share = np.where(level < mid, from_below, from_above)
    share = np.where(level < low, 0.0, np.where(level >= high, 1.0, share))
    return np.where(np.isfinite(low + mid + high), share, 0.0)
