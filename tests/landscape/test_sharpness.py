"""How sharp a minimum is."""

import math

import pytest

from bitcycle.landscape import Grid
from bitcycle.landscape.sharpness import area_below, mean_rise, measure_sharpness


def on(grid, function):
    return [[function(a, b) for b in grid.values] for a in grid.values]


FINE = Grid(num=201)
COARSE = Grid(num=11)


@pytest.mark.parametrize("radius", [0.25, 1.0])
def test_a_bowl_rises_by_the_square_of_the_radius(radius):
    bowl = on(FINE, lambda a, b: 3 * (a * a + b * b) + 7)
    assert mean_rise(FINE.values, bowl, radius) == pytest.approx(3 * radius**2, abs=1e-4)


def test_between_grid_points_the_interpolation_is_bilinear():
    """a b is: any grid has it exactly. Over a circle its mean is 0, that of |a b| is r^2 / pi."""
    product = on(Grid(num=3), lambda a, b: a * b)
    assert mean_rise((-1.0, 0.0, 1.0), product, 0.9) == pytest.approx(0, abs=1e-12)
    absolute = on(Grid(num=3), lambda a, b: abs(a * b))
    assert mean_rise((-1.0, 0.0, 1.0), absolute, 0.9) == pytest.approx(0.81 / math.pi, rel=1e-4)


@pytest.mark.parametrize(
    ("grid", "level"), [(COARSE, -0.3), (COARSE, 0.0), (Grid(num=5, extent=0.5), 0.123)]
)
def test_the_area_below_a_level_is_exact_for_a_plane(grid, level):
    """a + b <= level inside the square of side 2 e: its area minus the corner above the line."""
    plane = on(grid, lambda a, b: a + b)
    e = grid.extent
    cut = (2 * e - abs(level)) ** 2 / 2  # the smaller part, a right-angled triangle
    expected = 4 * e * e - cut if level >= 0 else cut
    assert area_below(grid.values, plane, level) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_losses_that_are_not_finite_are_above_every_level(bad):
    grid = Grid(num=5)
    losses = on(grid, lambda a, b: bad if a == 1.0 else 0.0)
    assert mean_rise(grid.values, losses, 0.5) == 0.0
    assert mean_rise(grid.values, losses, 0.51) == math.inf
    assert area_below(grid.values, losses, 5.0) == 3.0  # the cells next to that side are lost


def test_a_landscapes_own_numbers_have_radii_that_fit_and_a_level_of_1_above_the_centre():
    found = measure_sharpness(COARSE.values, on(COARSE, lambda a, b: 2 + abs(a)))
    assert (found.radii, found.level) == ((0.25, 0.5, 1.0), 3.0)
    assert found.area == pytest.approx(4.0)
    small = Grid(num=3, extent=0.1)
    assert measure_sharpness(small.values, on(small, lambda a, b: 0.0)).radii == (0.1,)


@pytest.mark.parametrize("radius", [0.0, 1.01])
def test_a_circle_that_does_not_fit_is_an_error(radius):
    with pytest.raises(ValueError, match="radius"):
        mean_rise(COARSE.values, on(COARSE, lambda a, b: 0.0), radius)
