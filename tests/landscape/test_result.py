"""The landscape as data: what it says of itself, and its file."""

import dataclasses
import json
import math

import pytest

from bitcycle.landscape import Grid, Landscape, Landscapes

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


def test_the_file_gives_it_back_to_the_bit(tmp_path):
    found = make(lambda a, b: math.inf if a == 1.0 else a / 3 + b)
    found.write(tmp_path / "landscape.json")
    assert Landscape.read(tmp_path / "landscape.json") == found
    assert found.num_nonfinite == 5


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


def test_machine_and_seconds_are_in_the_file_and_no_part_of_what_it_is(tmp_path):
    made = {"machine": {"processor": "EPYC"}, "threads": 1, "seconds": 2.5}
    found = make(made=made)
    data = json.loads(found.write(tmp_path / "landscape.json").read_text())
    assert made.items() <= data.items()
    assert Landscape.read(tmp_path / "landscape.json").made == made
    assert found == make()


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"alphas": [1]}', "null"])
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


def test_the_table_has_a_row_each():
    lines = str(Landscapes((make(), make(label="other", precision="fp32")))).splitlines()
    assert lines[0].split() == ["model", "bits", "loss", "rise", "r=0.25", "rise", "r=0.5",
                                "rise", "r=1", "area", "<", "1", "not", "finite"]  # fmt: skip
    assert [line.split()[:2] for line in lines[2:]] == [["bowl", "w8a8"], ["other", "fp32"]]
    assert lines[2].endswith("0/25")
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
