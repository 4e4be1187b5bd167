"""A landscape as numbers: its grid and its file."""

import dataclasses
import json
import math

import pytest

from bitcycle.landscape import Grid, Landscape, Landscapes
from bitcycle.landscape.result import to_plain

GRID = Grid(num=5)


def make(function=lambda a, b: a * a + b * b, grid=GRID, **changes):
    losses = tuple(tuple(function(a, b) for b in grid.values) for a in grid.values)
    settings = {"label": "bowl", "precision": "w8a8", "num_samples": 7, "seed": 1,
                "ranges": "batch", "origin": {"weights": "abc"}}  # fmt: skip
    return Landscape(
        alphas=grid.values, betas=grid.values, losses=losses, **{**settings, **changes}
    )


def test_rows_are_alphas_and_columns_betas():
    found = make(lambda a, b: 10 * a + b)
    assert found.losses[0][4] == -9.0
    assert found.center == 0.0
    assert found.slice() == (-10.0, -5.0, 0.0, 5.0, 10.0)


def test_the_file_is_plain_json_with_the_sharpness_in_it(tmp_path):
    found = make(lambda a, b: math.nan if (a, b) == (1.0, 1.0) else abs(a) + 1)

    def refuse(word):
        raise AssertionError(word)

    text = found.write(tmp_path / "landscape.json").read_text()
    data = json.loads(text, parse_constant=refuse)
    assert data["losses"][4][4] == "nan"
    assert data["center"] == 1.0
    assert data["sharpness"]["level"] == 2.0
    assert data["sharpness"]["rises"] == [*found.sharpness.rises[:2], "inf"]
    assert data["num_nonfinite"] == 1
    again = Landscape.read(tmp_path / "landscape.json")
    assert again.to_dict() == found.to_dict()


@pytest.mark.parametrize("text", ["", "[1]", '{"alphas": [1]}'])
def test_a_file_that_is_none_is_an_error_that_names_it(tmp_path, text):
    (tmp_path / "landscape.json").write_text(text)
    with pytest.raises(ValueError, match=r"landscape\.json is not a landscape or is damaged"):
        Landscape.read(tmp_path / "landscape.json")


def test_what_is_not_a_square_is_an_error():
    with pytest.raises(ValueError, match="4 rows for 5 alphas"):
        dataclasses.replace(make(), losses=make().losses[:4])


def test_several_are_compared_at_one_level_1_above_the_highest_centre():
    both = Landscapes((make(), make(lambda a, b: 3 + abs(a), label="trench")))
    assert both.common_level == 4.0
    assert [found.level for found in both.sharpness()] == [4.0, 4.0]
    assert [round(found.area, 6) for found in both.sharpness()] == [4.0, 4.0]
    narrow = dataclasses.replace(both, level=0.5)
    assert narrow.sharpness()[1].area == 0.0
    assert str(make()).splitlines()[2].startswith("bowl")


def test_directions_are_shared_with_equal_seeds_and_shapes():
    one = make(origin={"shapes": "a"})
    assert Landscapes((one, make(origin={"shapes": "a", "weights": "x"}))).share_directions
    assert not Landscapes((one, make(origin={"shapes": "b"}))).share_directions
    assert not Landscapes((one, make(origin={"shapes": "a"}, seed=2))).share_directions


def test_different_grids_and_nothing_at_all_cannot_be_compared():
    with pytest.raises(ValueError, match="bowl 5 x 5 to 1, bowl 3 x 3 to 1"):
        Landscapes((make(), make(grid=Grid(num=3))))
    with pytest.raises(ValueError, match="no landscape"):
        Landscapes(())


@pytest.mark.parametrize(("num", "extent"), [(3, 1.0), (25, 0.3), (51, 1.0)])
def test_values_are_exactly_symmetric_with_0_in_the_middle_and_the_extent_at_the_ends(num, extent):
    values = Grid(num=num, extent=extent).values
    assert len(values) == num
    assert values[num // 2] == 0.0
    assert (values[0], values[-1]) == (-extent, extent)
    assert all(a == -b for a, b in zip(values, reversed(values), strict=True))


@pytest.mark.parametrize(("num", "way_out"), [(50, "use 51"), (1, "use 3")])
def test_a_grid_without_a_middle_is_an_error_that_names_one_that_has(num, way_out):
    with pytest.raises(ValueError, match=rf"grid \({num}\) must be odd.*{way_out}"):
        Grid(num=num)


@pytest.mark.parametrize("extent", [0.0, float("nan"), float("inf")])
def test_an_extent_that_is_no_length_is_an_error(extent):
    with pytest.raises(ValueError, match="extent"):
        Grid(extent=extent)


def test_numbers_come_back_to_the_bit_through_plain_json():
    values = (0.1, 1 / 3, 5e-324, -0.0, math.inf, -math.inf, 7)
    text = json.dumps(to_plain({"values": values}), allow_nan=False)
    back = [float(value) for value in json.loads(text)["values"]]
    assert [x.hex() for x in back] == [float(x).hex() for x in values]
    assert math.isnan(float(to_plain(math.nan)))
