"""Landscapes on the page."""

from bitcycle.report.page.landscapes import landscape_figure, landscapes_section
from bitcycle.report.page.recorded import record

from .made_up import SCRIPT, Elements, landscape


def test_the_first_direction_is_across_and_infinity_has_the_top_colour():
    contour = landscape_figure(landscape(), (0.0, 3.0))["data"][0]
    assert contour["x"] == [-1, -0.5, 0, 0.5, 1]
    # alpha^2 + 2 beta^2 at alpha = 1, beta = 0: last column, middle row
    assert contour["z"][2][4] == 1
    assert contour["z"][4][2] == 2
    assert contour["z"][0][0] == 3.0


def test_those_of_runs_and_of_the_study_share_their_colours(made, tmp_path):
    landscape().write(made.methods[0].runs[0].directory / "landscape.json")
    landscape(SCRIPT).write(tmp_path / "landscape.json")
    (tmp_path / "broken-landscape.json").write_text("{")
    seen = Elements(landscapes_section(record(made), tmp_path))
    assert len(seen.data) == 2
    ranges = {(f["data"][0]["zmin"], f["data"][0]["zmax"]) for f in seen.data}
    assert len(ranges) == 1
    assert "static 8/8, seed 0 at w8a8" in seen.text
    assert "script" not in [n for n, a in seen.found if a.get("type") != "application/json"]


def test_without_one_there_is_no_section(made, tmp_path):
    assert landscapes_section(record(made), tmp_path) is None
