"""A loss landscape as numbers: the grid, the losses, and their file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from bitcycle.files import write_text
from bitcycle.landscape.sharpness import Sharpness, measure_sharpness
from bitcycle.landscape.surface import Ranges
from bitcycle.tables import text_table

FILE_NAME = "landscape.json"
MADE = (
    "machine", "threads", "jobs", "seconds", "model", "asked", "overrides", "trained_by",
    "trained_threads",
)  # fmt: skip

Point = tuple[int, int]  # row (alpha) and column (beta) of the grid


@dataclass(frozen=True, kw_only=True)
class Grid:
    """`num` values from -extent to extent for alpha, and the same for beta.

    `num` is odd, so that (0, 0), the model as it is, is a point. The values are computed so that
    the middle one is exactly 0 and the others are exactly symmetric.

    >>> Grid(num=5).values
    (-1.0, -0.5, 0.0, 0.5, 1.0)
    >>> Grid(num=5).center
    (2, 2)
    """

    num: int = 51
    extent: float = 1.0

    def __post_init__(self) -> None:
        if self.num < 3 or self.num % 2 == 0:
            near = max(3, self.num + 1)
            raise ValueError(
                f"grid ({self.num}) must be odd and at least 3, so that the model itself, (0, 0), "
                f"is one of its points; use {near}"
            )
        if not (math.isfinite(self.extent) and self.extent > 0):
            raise ValueError(f"extent ({self.extent}) must be a number above 0, such as 1.0")

    @property
    def values(self) -> tuple[float, ...]:
        """The values of alpha, and of beta, in ascending order."""
        last = self.num - 1
        return tuple(self.extent * ((2 * i - last) / last) for i in range(self.num))

    @property
    def center(self) -> Point:
        """The point with alpha = beta = 0."""
        return self.num // 2, self.num // 2

    @property
    def points(self) -> list[Point]:
        """All points, row by row."""
        return [(i, j) for i in range(self.num) for j in range(self.num)]

    def table(self, losses: Mapping[Point, float]) -> tuple[tuple[float, ...], ...]:
        """The losses of all points, row by row."""
        return tuple(tuple(losses[i, j] for j in range(self.num)) for i in range(self.num))


@dataclass(frozen=True, kw_only=True)
class Landscape:
    """`losses[i][j]` is the mean loss at (alphas[i], betas[j]); it may be NaN or infinite.

    precision: the bits of the forward passes. num_samples: of the mean, if known. seed: of the
    directions. ranges: of the activations, "batch" or "observed". origin: what else the numbers
    depend on, such as a hash of the weights. made: machine, time and command, as far as known;
    it does not count for equality.
    """

    alphas: tuple[float, ...]
    betas: tuple[float, ...]
    losses: tuple[tuple[float, ...], ...]
    label: str
    precision: str
    num_samples: int | None
    seed: int
    ranges: Ranges
    origin: dict[str, Any] = field(default_factory=dict)
    made: dict[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        rows, columns = len(self.losses), {len(row) for row in self.losses}
        if rows != len(self.alphas) or columns != {len(self.betas)} or self.alphas != self.betas:
            raise ValueError(
                f"a landscape is a square of losses over equal alphas and betas; got {rows} rows "
                f"for {len(self.alphas)} alphas and {len(self.betas)} betas"
            )

    @property
    def center(self) -> float:
        """The loss at (0, 0): that of the model itself."""
        middle = len(self.alphas) // 2
        return self.losses[middle][middle]

    @property
    def num_nonfinite(self) -> int:
        """Points whose loss is NaN or infinite."""
        return sum(not math.isfinite(loss) for row in self.losses for loss in row)

    def slice(self) -> tuple[float, ...]:
        """The losses along the first direction: over the alphas, at beta = 0."""
        return tuple(row[len(self.betas) // 2] for row in self.losses)

    @cached_property
    def sharpness(self) -> Sharpness:
        """Mean rise at radii 0.25, 0.5 and 1; area at most 1 above the centre."""
        return measure_sharpness(self.alphas, self.losses)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; NaN and infinity are the texts nan, inf and -inf."""
        return {
            "label": self.label,
            "precision": self.precision,
            "num_samples": self.num_samples,
            "seed": self.seed,
            "ranges": self.ranges,
            "center": to_plain(self.center),
            "sharpness": to_plain(self.sharpness.to_dict()),
            "num_nonfinite": self.num_nonfinite,
            "origin": to_plain(self.origin),
            **self.made,
            "alphas": list(self.alphas),
            "betas": list(self.betas),
            "losses": to_plain(self.losses),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Landscape:
        """The landscape that `to_dict` was called on."""
        names = ("label", "precision", "num_samples", "seed", "ranges")
        return cls(
            alphas=tuple(data["alphas"]),
            betas=tuple(data["betas"]),
            losses=tuple(tuple(float(loss) for loss in row) for row in data["losses"]),
            origin=dict(data["origin"]),
            made={name: data[name] for name in MADE if name in data},
            **{name: data[name] for name in names},
        )

    def write(self, path: str | Path) -> Path:
        """Write a JSON file, whole or not at all."""
        target = Path(path)
        write_text(target, json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n")
        return target

    @classmethod
    def read(cls, path: str | Path) -> Landscape:
        """Read a file that `write` wrote."""
        try:
            return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"{path} is not a landscape or is damaged ({type(error).__name__}: {error}); "
                "delete it and compute it anew"
            ) from None

    def __str__(self) -> str:
        return str(Landscapes((self,)))


@dataclass(frozen=True)
class Landscapes:
    """Several landscapes to compare. `str()` is a table, `plot` draws them side by side."""

    items: tuple[Landscape, ...]
    level: float | None = None  # of the area below it; None: 1 above the highest centre

    def __post_init__(self) -> None:
        if not self.items:
            raise ValueError("there is no landscape to compare; give at least one")
        if len({item.alphas for item in self.items}) > 1:
            raise ValueError(
                "landscapes on different grids cannot be compared: "
                + ", ".join(f"{item.label} {_grid(item)}" for item in self.items)
            )

    @property
    def common_level(self) -> float:
        """The loss level of the areas."""
        if self.level is not None:
            return self.level
        centers = [item.center for item in self.items if math.isfinite(item.center)]
        return max(centers, default=0.0) + 1.0

    def sharpness(self) -> list[Sharpness]:
        """The sharpness of each, at the common level."""
        level = self.common_level
        return [measure_sharpness(item.alphas, item.losses, level=level) for item in self.items]

    @property
    def share_directions(self) -> bool:
        """Whether all have the same parameters and the same Gaussian directions."""
        return len({(item.seed, item.origin.get("shapes")) for item in self.items}) == 1

    def __str__(self) -> str:
        numbers = self.sharpness()
        header = ("model", "bits", "loss", *(f"rise r={r:g}" for r in numbers[0].radii),
                  f"area < {self.common_level:.4g}", "not finite")  # fmt: skip
        rows = [
            (item.label, item.precision, f"{item.center:.4f}",
             *(f"{rise:.4g}" for rise in found.rises), f"{found.area:.3f}",
             f"{item.num_nonfinite}/{len(item.alphas) ** 2}")
            for item, found in zip(self.items, numbers, strict=True)
        ]  # fmt: skip
        return text_table(header, rows, right=range(2, len(header)))


def _grid(item: Landscape) -> str:
    return f"{len(item.alphas)} x {len(item.betas)} to {item.alphas[-1]:g}"


def to_plain(value: Any) -> Any:
    """A value for JSON: tuples as lists, NaN and infinity as texts, which `float` reads again.

    >>> to_plain({"losses": (0.1, math.inf, math.nan)})
    {'losses': [0.1, 'inf', 'nan']}
    """
    if isinstance(value, Mapping):
        return {key: to_plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
