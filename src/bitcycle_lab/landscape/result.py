"""A loss landscape as numbers: the losses on a grid, their sharpness, and their file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitcycle.files import to_plain, write_json
from bitcycle.tables import text_table

FILE_NAME = "landscape.json"
NUM_ANGLES = 720
RADII = (0.25, 0.5, 1.0)

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Sharpness:
    """rises[k] is the mean rise at radii[k]; area is that below `level`.

    A wider minimum has a smaller rise and a larger area.
    """

    radii: tuple[float, ...]
    rises: tuple[float, ...]
    level: float
    area: float


@dataclass(frozen=True, kw_only=True)
class Landscape:
    """`losses[i][j]` is the mean loss at (alphas[i], alphas[j]); it may be NaN or infinite.

    precision: the bits of the forward passes. settings: all that the losses depend on, such as the
    seed of the directions and a hash of the weights.
    """

    label: str
    precision: str
    settings: dict[str, Any]
    alphas: tuple[float, ...]
    losses: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        num = len(self.alphas)
        if len(self.losses) != num or any(len(row) != num for row in self.losses):
            raise ValueError(f"losses must be {num} rows of {num}, got {len(self.losses)} rows")

    @property
    def center(self) -> float:
        """The loss at (0, 0): that of the model itself."""
        return self.slice()[len(self.alphas) // 2]

    @property
    def num_nonfinite(self) -> int:
        """Points whose loss is NaN or infinite."""
        return sum(not math.isfinite(loss) for row in self.losses for loss in row)

    def slice(self) -> tuple[float, ...]:
        """The losses along the first direction: over the alphas, at beta = 0."""
        return tuple(row[len(self.alphas) // 2] for row in self.losses)

    def sharpness(self, level: float | None = None) -> Sharpness:
        """Mean rise at radii 0.25, 0.5 and 1, if they fit the grid, and area below a level.

        level: None for 1 above the centre.
        """
        level = self.center + 1.0 if level is None else level
        radii = tuple(r for r in RADII if r <= self.alphas[-1]) or (self.alphas[-1],)
        rises = tuple(mean_rise(self.alphas, self.losses, radius) for radius in radii)
        area = area_below(self.alphas, self.losses, level)
        return Sharpness(radii=radii, rises=rises, level=level, area=area)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; NaN and infinity are the texts nan, inf and -inf."""
        numbers = {"center": self.center, "sharpness": asdict(self.sharpness())}
        return dict(to_plain({**numbers, **asdict(self)}))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Landscape:
        """The landscape that `to_dict` was called on."""
        return cls(
            label=data["label"],
            precision=data["precision"],
            settings=data["settings"],
            alphas=tuple(data["alphas"]),
            losses=tuple(tuple(float(loss) for loss in row) for row in data["losses"]),
        )

    def write(self, path: str | Path) -> Path:
        """Write a JSON file, whole or not at all."""
        write_json(Path(path), self.to_dict())
        return Path(path)

    @classmethod
    def read(cls, path: str | Path) -> Landscape:
        """Read a finished landscape. Raises ValueError for any other file."""
        try:
            return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"{path} is not a finished landscape ({type(error).__name__}: {error})"
            ) from None

    def __str__(self) -> str:
        return str(Landscapes((self,)))


@dataclass(frozen=True)
class Landscapes:
    """Several landscapes to compare. `str()` is a table, `plot` draws them side by side."""

    items: tuple[Landscape, ...]

    def __post_init__(self) -> None:
        grids = {(len(item.alphas), item.alphas[-1]) for item in self.items}
        if len(grids) != 1:
            raise ValueError(
                f"landscapes must be one or more on the same grid, got {sorted(grids)}"
            )

    def sharpness(self) -> list[Sharpness]:
        """The sharpness of each, all at one level: 1 above the highest finite centre."""
        centers = [item.center for item in self.items if math.isfinite(item.center)]
        level = max(centers, default=0.0) + 1.0
        return [item.sharpness(level) for item in self.items]

    def __str__(self) -> str:
        numbers = self.sharpness()
        header = ("model", "bits", "loss", *(f"rise r={r:g}" for r in numbers[0].radii),
                  f"area < {numbers[0].level:.4g}", "not finite")  # fmt: skip
        rows = [
            (item.label, item.precision, f"{item.center:.4f}",
             *(f"{rise:.4g}" for rise in found.rises), f"{found.area:.3f}",
             f"{item.num_nonfinite}/{len(item.alphas) ** 2}")
            for item, found in zip(self.items, numbers, strict=True)
        ]  # fmt: skip
        return text_table(header, rows, right=range(2, len(header)))


# -- sharpness ------------------------------------------------------------------------------------


def mean_rise(alphas: Sequence[float], losses: Sequence[Sequence[float]], radius: float) -> float:
    """Mean of loss - loss(0, 0) on a circle, at 720 angles, with bilinear interpolation.

    It is infinite if the circle meets a loss that is not finite.

    >>> mean_rise((-1.0, 0.0, 1.0), [[3, 3, 3], [1, 1, 1], [3, 3, 3]], 1.0)  # 2 |alpha|
    1.2732...
    """
    grid, last = np.asarray(losses, np.float64), len(alphas) - 1
    angles = np.arange(NUM_ANGLES) * (2 * math.pi / NUM_ANGLES)
    circle = radius * np.stack([np.cos(angles), np.sin(angles)])
    place = np.clip((circle / alphas[-1] + 1) / 2 * last, 0, last)  # in grid lines
    i, j = np.minimum(place.astype(int), last - 1)
    u, v = place - (i, j)
    low = _between(grid[i, j], grid[i, j + 1], v)
    high = _between(grid[i + 1, j], grid[i + 1, j + 1], v)
    rises = _between(low, high, u) - grid[last // 2, last // 2]
    return float(rises.mean()) if np.isfinite(rises).all() else math.inf


def _between(a: Floats, b: Floats, t: Floats) -> Floats:
    """a (1 - t) + b t; where t is 0, b does not count, not even an infinite one."""
    with np.errstate(invalid="ignore"):
        return np.where(t > 0, a * (1 - t) + b * t, a)


def area_below(alphas: Sequence[float], losses: Sequence[Sequence[float]], level: float) -> float:
    """The area of alpha x beta with a loss of at most `level`.

    Each cell is four triangles that meet in its middle, the mean of its corners, with linear
    interpolation in each. Cells with a corner that is not finite have no area.

    >>> area_below((-1.0, 0.0, 1.0), [[-1, -1, -1], [0, 0, 0], [1, 1, 1]], 0.5)  # alpha
    3.0
    """
    grid = np.asarray(losses, np.float64)
    a, b, c, d = grid[:-1, :-1], grid[:-1, 1:], grid[1:, 1:], grid[1:, :-1]  # around each cell
    with np.errstate(invalid="ignore"):
        middle = (a + b + c + d) / 4
    shares = sum(_share_below(p, q, middle, level) for p, q in ((a, b), (b, c), (c, d), (d, a)))
    return float(np.sum(shares) / 4 * (alphas[1] - alphas[0]) ** 2)


def _share_below(p: Floats, q: Floats, r: Floats, level: float) -> Floats:
    """The share of each triangle with these heights at its corners that is at most `level`."""
    low, mid, high = np.sort(np.stack([p, q, r]), axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        from_below = (level - low) ** 2 / ((mid - low) * (high - low))
        from_above = 1 - (high - level) ** 2 / ((high - mid) * (high - low))
    share = np.where(level < mid, from_below, from_above)
    share = np.where(level < low, 0.0, np.where(level >= high, 1.0, share))
    return np.where(np.isfinite(low + mid + high), share, 0.0)
