"""Pictures of landscapes."""

import math

import numpy as np
import pytest

from bitcycle.landscape import Grid, Landscapes
from bitcycle.report import plot
from bitcycle.report.files import save
from bitcycle.report.landscape import make_levels
from tests.landscape.test_result import make

pytest.importorskip("matplotlib")

GRID = Grid(num=9)
BOWL = make(grid=GRID)
TRENCH = make(lambda a, b: 0.01 + 20 * a * a, grid=GRID, label="trench", precision="w3a3")


def test_contours_stand_above_surfaces_one_column_each_and_one_colour_bar():
    figure = plot(Landscapes((BOWL, TRENCH)))
    assert [axes.name for axes in figure.axes] == ["rectilinear"] * 2 + ["3d"] * 2 + ["rectilinear"]
    assert [axes.get_title().split("\n")[0] for axes in figure.axes[:2]] == ["bowl", "trench"]
    assert "w3a3, loss 0.01, rise" in figure.axes[1].get_title()


@pytest.mark.parametrize(("kind", "names"), [
    ("contour", ["rectilinear"] * 2), ("surface", ["3d", "rectilinear"]),
    ("slice", ["rectilinear"]), ("both", ["rectilinear", "3d", "rectilinear"]),
])  # fmt: skip
def test_a_kind_can_be_asked_for(kind, names):
    assert [axes.name for axes in plot(BOWL, kind=kind).axes] == names


def test_all_are_on_the_same_levels():
    figure = plot(Landscapes((BOWL, TRENCH)), kind="contour")
    levels = [
        [tuple(each.levels) for each in axes.collections if hasattr(each, "levels")]
        for axes in figure.axes[:2]
    ]
    assert levels[0] == levels[1]
    assert len(levels[0]) == 2  # filled, and lines


def test_alpha_is_to_the_right_and_beta_up():
    """A loss that falls along alpha: on a line of equal loss all points have one alpha."""
    slope = make(lambda a, b: 3 - a, grid=GRID)
    axes = plot(slope, kind="contour").axes[0]
    lines = [each for each in axes.collections if hasattr(each, "levels")][1]
    for path in lines.get_paths():
        if len(path.vertices):
            assert np.ptp(path.vertices[:, 0]) < 1e-9
            assert np.ptp(path.vertices[:, 1]) == pytest.approx(2)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("alpha", "beta")


def test_levels_are_round_and_grow_by_a_factor():
    """The last fourteen from the lowest loss, or a thousandth of the highest level, on."""
    assert make_levels(Landscapes((TRENCH,)), top=10) == [
        0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0,
    ]  # fmt: skip
    assert make_levels(Landscapes((TRENCH,)), top=0.16) == [
        0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15,
    ]  # fmt: skip


def test_levels_of_losses_that_are_alike_or_negative_are_even():
    for function in (lambda a, b: 5 + a * a, lambda a, b: a - b):
        levels = make_levels(Landscapes((make(function, grid=GRID),)))
        steps = np.diff(levels)
        assert 4 < len(levels) < 20
        assert np.allclose(steps, steps[0])


def test_a_plain_can_be_drawn(tmp_path):
    figure = plot(make(lambda a, b: 2.0))
    assert save(figure, tmp_path / "plain.png").stat().st_size > 10_000


def test_losses_that_are_not_finite_are_grey_and_counted(tmp_path):
    hole = make(lambda a, b: math.nan if a + b > 1.2 else a * a + b * b, grid=GRID)
    figure = plot(hole)
    assert hole.num_nonfinite == 10
    assert figure.axes[0].get_xlabel() == "alpha\ngrey: 10 losses are not finite"
    assert save(figure, tmp_path / "hole.png").stat().st_size > 10_000


def test_a_surface_that_is_cut_says_where():
    figure = plot(TRENCH, top=10)
    assert figure.axes[-1].get_ylabel() == "loss (surfaces are cut at 10)"
    assert figure.axes[1].get_zlim()[1] == 10
    assert plot(TRENCH, top=10, kind="contour").axes[-1].get_ylabel() == "loss"


def test_a_slice_has_a_line_for_each():
    axes = plot(Landscapes((BOWL, TRENCH)), kind="slice").axes[0]
    assert [list(line.get_ydata()) for line in axes.get_lines()] == [
        list(BOWL.slice()), list(TRENCH.slice()),
    ]  # fmt: skip


def test_what_cannot_be_drawn_is_an_error():
    with pytest.raises(ValueError, match="kind.*both, contour, surface or slice"):
        plot(BOWL, kind="3d")
    with pytest.raises(ValueError, match=r"top \(-1\) must be above the lowest loss, 0"):
        plot(BOWL, top=-1)
    with pytest.raises(ValueError, match="every loss"):
        plot(make(lambda a, b: math.nan))
