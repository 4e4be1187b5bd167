"""Loss landscapes."""

import math

import numpy as np
import pytest

from bitcycle.landscape import Grid, Landscapes
from bitcycle.report import plot
from bitcycle.report.figures.landscape import make_levels
from tests.landscape.test_result import make

GRID = Grid(num=9)
BOWL = make(grid=GRID)
TRENCH = make(lambda a, b: 0.01 + 20 * a * a, grid=GRID, label="trench", precision="w3a3")


def test_levels_are_round_and_grow_by_a_factor():
    """The last fourteen from the lowest loss, or a thousandth of the highest level, on."""
    assert make_levels(Landscapes((TRENCH,)), top=10) == [
        0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0,
    ]  # fmt: skip
    assert make_levels(Landscapes((TRENCH,)), top=0.16) == [
        0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15,
    ]  # fmt: skip


@pytest.mark.parametrize("function", [lambda a, b: 5 + a * a, lambda a, b: a - b])
def test_levels_of_losses_that_are_alike_or_negative_are_evenly_spaced(function):
    steps = np.diff(make_levels(Landscapes((make(function, grid=GRID),))))
    assert 3 < len(steps) < 19
    assert np.allclose(steps, steps[0])


def test_what_cannot_be_drawn_is_an_error():
    with pytest.raises(ValueError, match="kind.*both, contour, surface or slice"):
        plot(BOWL, kind="3d")
    with pytest.raises(ValueError, match=r"top \(-1\) must be above the lowest loss, 0"):
        plot(BOWL, top=-1)
    with pytest.raises(ValueError, match="every loss"):
        plot(make(lambda a, b: math.nan))


@pytest.mark.parametrize(("kind", "names"), [
    ("contour", ["rectilinear"] * 2), ("surface", ["3d", "rectilinear"]),
    ("slice", ["rectilinear"]), ("both", ["rectilinear", "3d", "rectilinear"]),
])  # fmt: skip
def test_every_kind_is_drawn(kind, names):
    assert [axes.name for axes in plot(TRENCH, kind=kind).axes] == names


def test_alpha_is_to_the_right():
    """A loss that falls along alpha: on a line of equal loss all points have one alpha."""
    slope = make(lambda a, b: 3 - a, grid=GRID)
    axes = plot(slope, kind="contour").axes[0]
    lines = [each for each in axes.collections if hasattr(each, "levels")][1]
    paths = [path.vertices for path in lines.get_paths() if len(path.vertices)]
    assert all(np.ptp(path[:, 0]) < 1e-9 for path in paths)


def test_a_plain_and_a_hole_are_drawn():
    plot(make(lambda a, b: 2.0)).draw_without_rendering()
    hole = make(lambda a, b: math.nan if a + b > 1.2 else a * a + b * b, grid=GRID)
    assert f"{hole.num_nonfinite} losses" in plot(hole).axes[0].get_xlabel()
