"""Grids and errors of formats."""

import math

import pytest

from bitcycle.formats import list_formats, parse_format
from bitcycle_lab.report import plot
from bitcycle_lab.report.figures.formats import draw_formats, element_panels, format_panel


@pytest.mark.parametrize("format", list_formats(), ids=str)
def test_values_on_the_grid_have_no_error_and_others_at_most_half_a_step(format):
    panel = format_panel(format, octaves=12)
    assert len(panel.octave_errors) == 12
    assert all(0 <= error <= 1 for error in panel.errors)
    half_step = 2.0 ** -(format.mantissa + 1)
    normal = [
        error
        for share, error in zip(panel.magnitudes, panel.errors, strict=True)
        if share * format.max_value >= 2.0**format.min_exponent
    ]
    assert max(normal) == pytest.approx(half_step / (1 + half_step), rel=1e-6)


def test_the_largest_errors_of_e2m1_by_octave():
    """At 5, 2.5, 0.75 and 0.375, which become 4, 2, 1 and 0.5; 0.25 and less become 0."""
    panel = format_panel(parse_format("nvfp4"), octaves=5)
    assert panel.octave_errors == pytest.approx((1, 1 / 3, 1 / 3, 1 / 5, 1 / 5))
    assert panel.values == (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    assert panel.shares == pytest.approx((1 / 12, 1 / 6, 1 / 4, 1 / 3, 1 / 2, 2 / 3, 1))


def test_formats_with_the_same_elements_share_a_panel():
    titles = [panel.title for panel in element_panels(list_formats(), octaves=2)]
    assert titles[:3] == ["bf16", "fp16", "e4m3: fp8, mxfp8"]
    assert titles[-1] == "e2m1: mxfp4, nvfp4"
    assert sum(title.count(",") + 1 for title in titles) == len(list_formats())


@pytest.mark.parametrize(("name", "scale"), [("mxfp6", "linear"), ("fp8", "log"), ("bf16", "log")])
def test_a_format_is_drawn_with_its_grid_and_its_errors(name, scale):
    pytest.importorskip("matplotlib")
    grid, errors = plot(parse_format(name), octaves=4).axes
    assert (grid.get_xscale(), errors.get_xscale()) == (scale, "log")
    assert grid.get_title(loc="left") == name
    (line,) = errors.lines
    assert max(line.get_ydata()) == max(format_panel(parse_format(name), octaves=4).errors)


def test_several_formats_are_drawn_with_a_row_and_a_line_for_each_element():
    pytest.importorskip("matplotlib")
    formats = [parse_format(name) for name in ("bf16", "mxfp8", "mxfp4", "nvfp4")]
    grids, errors = draw_formats(formats, octaves=6).axes
    rows = [label.get_text() for label in grids.get_yticklabels()]
    assert rows == ["bf16", "e4m3: mxfp8", "e2m1: mxfp4, nvfp4"]
    assert len(errors.patches) == 3
    assert math.isclose(errors.patches[0].get_data().values[0], 2**-8 / (1 + 2**-8))
    with pytest.raises(ValueError, match="at least one format"):
        draw_formats([])
