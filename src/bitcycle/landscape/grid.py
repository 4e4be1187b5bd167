"""The grid of a landscape: n x n points around the weights of a model, which are its centre."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

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
        """alpha, and beta, from lowest to highest."""
        last = self.num - 1
        return tuple(self.extent * ((2 * i - last) / last) for i in range(self.num))

    @property
    def center(self) -> Point:
        """Where alpha = beta = 0."""
        return self.num // 2, self.num // 2

    @property
    def points(self) -> list[Point]:
        """All of them, row by row."""
        return [(i, j) for i in range(self.num) for j in range(self.num)]

    def table(self, losses: Mapping[Point, float]) -> tuple[tuple[float, ...], ...]:
        """The losses of all points, row by row."""
        return tuple(tuple(losses[i, j] for j in range(self.num)) for i in range(self.num))
