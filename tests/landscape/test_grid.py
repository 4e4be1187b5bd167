"""The grid of a landscape."""

import pytest

from bitcycle.landscape import Grid


@pytest.mark.parametrize("num", [3, 7, 25, 51, 101])
@pytest.mark.parametrize("extent", [1.0, 0.3])
def test_values_are_exactly_symmetric_with_0_in_the_middle_and_the_extent_at_the_ends(num, extent):
    values = Grid(num=num, extent=extent).values
    assert len(values) == num
    assert values[num // 2] == 0.0
    assert (values[0], values[-1]) == (-extent, extent)
    assert all(a == -b for a, b in zip(values, reversed(values), strict=True))


def test_the_published_grid_is_the_default():
    grid = Grid()
    assert (grid.num, grid.extent, grid.center) == (51, 1.0, (25, 25))
    assert grid.values[1] == -0.96


def test_points_come_row_by_row_and_a_table_has_them_in_their_place():
    grid = Grid(num=3)
    assert grid.points[:4] == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert grid.table({(i, j): 10 * i + j for i, j in grid.points})[2] == (20, 21, 22)


@pytest.mark.parametrize(("num", "way_out"), [(50, "use 51"), (1, "use 3"), (0, "use 3")])
def test_a_grid_without_a_middle_is_an_error_that_names_one_that_has(num, way_out):
    with pytest.raises(ValueError, match=rf"grid \({num}\) must be odd.*{way_out}"):
        Grid(num=num)


@pytest.mark.parametrize("extent", [0.0, -1.0, float("nan"), float("inf")])
def test_an_extent_that_is_no_length_is_an_error(extent):
    with pytest.raises(ValueError, match="extent"):
        Grid(extent=extent)
