"""The landscape as data: its grid, its points, its file, its sharpness."""

import dataclasses
import json
import math

import pytest

from bitcycle.landscape import Grid, Landscape, Landscapes
from bitcycle.landscape.points import PointFile
from bitcycle.landscape.result import from_plain, to_plain
from bitcycle.landscape.sharpness import area_below, mean_rise, measure_sharpness

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
    back = [from_plain(value) for value in json.loads(text)["values"]]
    assert [x.hex() for x in back] == [float(x).hex() for x in values]
    assert math.isnan(from_plain(to_plain(math.nan)))


ORIGIN = {"weights": "abc", "grid": 5, "center": math.nan}


def fill(path, points, origin=ORIGIN):
    store = PointFile(path, origin)
    with store.opened():
        for point, loss in points.items():
            store.add(point, loss)
    return store


def test_points_are_there_again_to_the_bit(tmp_path):
    points = {(0, 1): 1 / 3, (4, 4): math.inf, (2, 2): 1e-300}
    fill(tmp_path / "p.jsonl", points)
    store = PointFile(tmp_path / "p.jsonl", ORIGIN)
    assert store.read() == points
    with store.opened():
        assert store.losses == points
        store.add((3, 3), math.nan)
    assert math.isnan(store.read()[3, 3])
    assert len(store.read()) == 4


def test_seconds_add_up_over_interruptions_unless_a_point_does_not_tell(tmp_path):
    for place, seconds in enumerate((1.5, 0.25)):
        store = PointFile(tmp_path / "p.jsonl", ORIGIN)
        with store.opened():
            store.add((0, place), 0.5, seconds)
    assert store.seconds == 1.75
    with store.opened():
        assert store.seconds == 1.75
        store.add((1, 1), 0.5)
    assert store.seconds is None
    assert PointFile(tmp_path / "p.jsonl", ORIGIN).read() == dict.fromkeys(
        [(0, 0), (0, 1), (1, 1)], 0.5
    )


@pytest.mark.parametrize("tail", ["[1, 2", "[1, 2, 0.5, 0.", '{"a', "[3, 4]\n"])
def test_a_line_that_was_cut_short_does_not_count_and_does_no_harm(tmp_path, tail):
    path = tmp_path / "p.jsonl"
    fill(path, {(0, 0): 0.5})
    with path.open("a") as handle:
        handle.write(tail)
    fill(path, {(0, 1): 0.25})
    assert PointFile(path, ORIGIN).read() == {(0, 0): 0.5, (0, 1): 0.25}


def test_points_of_something_else_are_not_taken(tmp_path):
    fill(tmp_path / "p.jsonl", {(0, 0): 0.5})
    other = {**ORIGIN, "weights": "xyz"}
    assert PointFile(tmp_path / "p.jsonl", other).read() == {}
    fill(tmp_path / "p.jsonl", {(1, 1): 2.0}, other)
    assert PointFile(tmp_path / "p.jsonl", other).read() == {(1, 1): 2.0}
    assert PointFile(tmp_path / "p.jsonl", ORIGIN).read() == {}


def test_two_processes_do_not_write_one_file(tmp_path):
    store = PointFile(tmp_path / "p.jsonl", ORIGIN)
    with (
        store.opened(),
        pytest.raises(ValueError, match="being written by another process"),
        PointFile(tmp_path / "p.jsonl", ORIGIN).opened(),
    ):
        pass
    store.remove()
    store.remove()
    assert store.read() == {}


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
