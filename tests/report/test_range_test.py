"""The picture of a range test."""

import dataclasses
import math

import pytest

from bitcycle.range_test import RangeCurve, RangeTest
from bitcycle.report import plot
from bitcycle.report.files import save
from bitcycle.report.range_test import MOST_POINTS, draw_range_panels, switching_point

pytest.importorskip("matplotlib")

CURVE = RangeCurve(
    bits=(2,) * 6 + (3,) * 6 + (4,) * 6,
    metric=(10, 12, 11, 9, 10, 12, 12, 14, 30, 45, 60, 62, 64, 70, 72, 74, 76, 78),
    window=2,
    threshold=20,
    name="accuracy",
)
TEST = RangeTest(low=3, high=8, curve=CURVE, backward=8, reset=False)


def lines(axes):
    return {tuple(line.get_xdata()): line for line in axes.get_lines()}


def test_the_switching_point_is_where_the_mean_first_exceeds_start_plus_threshold():
    """3 bits start at 13; the means of two steps are 13, 22, 37.5, ... and the goal is 33."""
    assert switching_point(CURVE) == (9, 37.5)


def test_every_precision_has_a_colour_of_its_own_and_its_bits_above():
    (axes,) = plot(TEST).axes
    means = [line for line in axes.get_lines() if line.get_linewidth() == 2.0]
    assert [list(line.get_xdata()) for line in means] == [
        list(range(6)), list(range(6, 12)), list(range(12, 18)),
    ]  # fmt: skip
    assert len({line.get_color() for line in means}) == 3
    assert [text.get_text() for text in axes.texts] == ["2 bits", "3", "4"]


def test_the_switching_point_is_circled_and_the_threshold_is_drawn_up_to_there():
    figure = plot(TEST)
    (axes,) = figure.axes
    circle = next(line for line in axes.get_lines() if line.get_marker() == "o")
    assert (list(circle.get_xdata()), list(circle.get_ydata())) == ([9], [37.5])
    heights = [c.get_segments()[0][0][1] for c in axes.collections]
    assert heights == [31, 33]  # start + 20 at 2 and at 3 bits; 4 bits are beyond the bound
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["start + threshold (20)", "switching point"]
    assert axes.get_title("left") == "Range test: learns from 3 bits on"


def test_a_test_that_nothing_passed_is_drawn_from_its_curve(tmp_path):
    curve = RangeCurve(bits=(2, 2, 3, 3), metric=(0.1, 0.1, 0.2, math.nan), window=1, threshold=0.5)
    figure = plot(curve)
    (axes,) = figure.axes
    assert axes.get_title("left") == "Range test: no gain above 0.5"
    assert not [line for line in axes.get_lines() if line.get_marker() == "o"]
    cross = next(line for line in axes.get_lines() if line.get_marker() == "x")
    assert list(cross.get_xdata()) == [3]
    assert save(figure, tmp_path / "curve.png").stat().st_size > 10_000


def test_several_tests_have_a_panel_each_and_one_legend():
    other = dataclasses.replace(CURVE, threshold=90)
    figure = draw_range_panels({"a": CURVE, "b": other, "c": CURVE})
    panels = [axes for axes in figure.axes if axes.axison]
    assert [axes.get_title("left") for axes in panels] == [
        "a:\nlearns from 3 bits on", "b:\nno gain above 90", "c:\nlearns from 3 bits on",
    ]  # fmt: skip
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["switching point", "start + threshold"]


def test_long_curves_are_thinned_in_panels_but_keep_their_last_step():
    number = 4 * MOST_POINTS
    curve = RangeCurve(bits=(2,) * number + (3,) * 7, metric=(0.0,) * (number + 7), window=1,
                       threshold=1)  # fmt: skip
    (axes,) = draw_range_panels({"long": curve}).axes
    first, last = (line.get_xdata() for line in axes.get_lines() if line.get_linewidth() == 2.0)
    assert len(first) + len(last) <= MOST_POINTS
    assert (first[-1], last[-1]) == (number - 1, number + 6)
