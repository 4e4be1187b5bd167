"""A landscape as numbers: its file, its sharpness, and several in one table."""

import json
import math
from dataclasses import replace

import pytest

from bitcycle.files import to_plain
from bitcycle_lab.landscape import Landscape, Landscapes
from bitcycle_lab.landscape.result import area_below, mean_rise
from bitcycle_lab.landscape.surface import grid_values


def on(function, num=5, extent=1.0):
    values = grid_values(num, extent)
    return values, tuple(tuple(function(a, b) for b in values) for a in values)


def make(function=lambda a, b: a * a + b * b, num=5, extent=1.0, **changes):
    alphas, losses = on(function, num, extent)
    about = {"label": "bowl", "precision": "w8a8", "settings": {"seed": 1}, **changes}
    return Landscape(alphas=alphas, losses=losses, **about)


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
    assert data["sharpness"]["rises"] == [*found.sharpness().rises[:2], "inf"]
    again = Landscape.read(tmp_path / "landscape.json")
    assert again.to_dict() == found.to_dict()
    assert again.num_nonfinite == 1


@pytest.mark.parametrize("text", ["", "[1]", '{"alphas": [1]}'])
def test_a_file_that_is_none_is_an_error_that_names_it(tmp_path, text):
    (tmp_path / "landscape.json").write_text(text)
    with pytest.raises(ValueError, match=r"landscape\.json"):
        Landscape.read(tmp_path / "landscape.json")


def test_what_is_not_a_square_is_an_error():
    with pytest.raises(ValueError, match="got 4 rows"):
        replace(make(), losses=make().losses[:4])


def test_several_are_compared_at_one_level_1_above_the_highest_centre():
    both = Landscapes((make(), make(lambda a, b: 3 + abs(a), label="trench")))
    assert [(found.level, round(found.area, 6)) for found in both.sharpness()] == [(4.0, 4.0)] * 2
    assert [line.split()[0] for line in str(both).splitlines()[2:]] == ["bowl", "trench"]
    broken = Landscapes((make(lambda a, b: math.nan),))
    assert broken.sharpness()[0].level == 1.0


@pytest.mark.parametrize("items", [(make(), make(num=3)), ()])
def test_different_grids_and_nothing_at_all_cannot_be_compared(items):
    with pytest.raises(ValueError, match="same grid"):
        Landscapes(items)


def test_numbers_come_back_to_the_bit_through_plain_json():
    values = (0.1, 1 / 3, 5e-324, -0.0, math.inf, -math.inf, 7)
    text = json.dumps(to_plain({"values": values}), allow_nan=False)
    back = [float(value) for value in json.loads(text)["values"]]
    assert [x.hex() for x in back] == [float(x).hex() for x in values]
    assert math.isnan(float(to_plain(math.nan)))


# -- sharpness ------------------------------------------------------------------------------------


@pytest.mark.parametrize("radius", [0.25, 1.0])
def test_a_bowl_rises_by_the_square_of_the_radius(radius):
    values, bowl = on(lambda a, b: 3 * (a * a + b * b) + 7, num=201)
    assert mean_rise(values, bowl, radius) == pytest.approx(3 * radius**2, abs=1e-4)


def test_between_grid_points_the_interpolation_is_bilinear():
    """a b is: any grid has it exactly. Over a circle its mean is 0, that of |a b| is r^2 / pi."""
    assert mean_rise(*on(lambda a, b: a * b, num=3), 0.9) == pytest.approx(0, abs=1e-12)
    absolute = mean_rise(*on(lambda a, b: abs(a * b), num=3), 0.9)
    assert absolute == pytest.approx(0.81 / math.pi, rel=1e-4)


@pytest.mark.parametrize(("num", "e", "level"), [(11, 1.0, -0.3), (11, 1.0, 0.0), (5, 0.5, 0.123)])
def test_the_area_below_a_level_is_exact_for_a_plane(num, e, level):
    """a + b <= level inside the square of side 2 e: its area minus the corner above the line."""
    cut = (2 * e - abs(level)) ** 2 / 2  # the smaller part, a right-angled triangle
    expected = 4 * e * e - cut if level >= 0 else cut
    area = area_below(*on(lambda a, b: a + b, num, e), level)
    assert area == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_losses_that_are_not_finite_are_above_every_level(bad):
    grid = on(lambda a, b: bad if a == 1.0 else 0.0)
    assert mean_rise(*grid, 0.5) == 0.0
    assert mean_rise(*grid, 0.51) == math.inf
    assert area_below(*grid, 5.0) == 3.0  # the cells next to that side are lost


def test_a_landscapes_own_numbers_have_radii_that_fit_and_a_level_of_1_above_the_centre():
    found = make(lambda a, b: 2 + abs(a), num=11).sharpness()
    assert (found.radii, found.level) == ((0.25, 0.5, 1.0), 3.0)
    assert found.area == pytest.approx(4.0)
    assert make(lambda a, b: 0.0, 3, 0.1).sharpness().radii == (0.1,)
