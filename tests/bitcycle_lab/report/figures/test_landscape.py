"""Loss landscapes."""

import math

import numpy as np
import pytest

from bitcycle_lab.landscape import Landscapes
from bitcycle_lab.report import plot
from bitcycle_lab.report.figures.landscape import make_levels
from tests.bitcycle_lab.landscape.test_result import make

BOWL = make(num=9)
TRENCH = make(lambda a, b: 0.01 + 20 * a * a, num=9, label="trench", precision="w3a3")


def test_levels_are_round_and_grow_by_a_factor():
    """The last fourteen, from the lowest loss or a thousandth of the highest level on."""
    for highest, levels in (
        (10, [0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0]),
        (0.16, [0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15]),
    ):
        wall = make(lambda a, b, top=highest: 0.01 if a < -0.5 else top, num=9)
        assert make_levels(Landscapes((wall,))) == levels


@pytest.mark.parametrize("function", [lambda a, b: 5 + a * a, lambda a, b: a - b])
def test_levels_of_losses_that_are_alike_or_negative_are_evenly_spaced(function):
    steps = np.diff(make_levels(Landscapes((make(function, num=9),))))
    assert 3 < len(steps) < 19
    assert np.allclose(steps, steps[0])


@pytest.mark.parametrize(
    ("item", "options", "part"),
    [
        (BOWL, {"kind": "3d"}, "3d"),
        (make(lambda a, b: math.nan), {}, "finite"),
    ],
)
def test_what_cannot_be_drawn_is_an_error(item, options, part):
    with pytest.raises(ValueError, match=part):
        plot(item, **options)


def test_several_have_the_same_levels_and_one_colour_bar():
    figure = plot(Landscapes((BOWL, TRENCH)))
    *panels, bar = figure.axes
    levels = [
        each.levels for axes in panels for each in axes.collections if hasattr(each, "levels")
    ]
    assert len(levels) == 4  # areas and lines of both
    assert all(np.array_equal(each, levels[0]) for each in levels)
    assert bar.get_ylabel() == "loss"
    assert [axes.get_title().split("\n")[0] for axes in panels] == ["bowl", "trench"]
    (axes, _) = plot(BOWL, levels=[0.5, 1.5]).axes
    assert list(axes.collections[0].levels) == [0.5, 1.5]


def test_a_slice_has_one_line_per_landscape_in_one_panel():
    (axes,) = plot(Landscapes((BOWL, TRENCH)), kind="slice").axes
    assert [tuple(line.get_ydata()) for line in axes.lines] == [BOWL.slice(), TRENCH.slice()]


def test_alpha_is_to_the_right():
    """A loss that falls along alpha: on a line of equal loss all points have one alpha."""
    axes = plot(make(lambda a, b: 3 - a, num=9)).axes[0]
    lines = [each for each in axes.collections if hasattr(each, "levels")][1]
    paths = [path.vertices for path in lines.get_paths() if len(path.vertices)]
    assert all(np.ptp(path[:, 0]) < 1e-9 for path in paths)


def test_a_plain_and_a_hole_are_drawn():
    plot(make(lambda a, b: 2.0)).draw_without_rendering()
    hole = make(lambda a, b: math.nan if a + b > 1.2 else a * a + b * b, num=9)
    figure = plot(hole)
    figure.draw_without_rendering()
    assert f"{hole.num_nonfinite} not finite" in figure.axes[0].get_title()
