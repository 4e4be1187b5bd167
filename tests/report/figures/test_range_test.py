"""Range tests."""

import math

import pytest

from bitcycle.range_curves import PrecisionRun, RangeCurve, RelativeCurve
from bitcycle.range_test import RangeTest
from bitcycle.report import plot
from bitcycle.report.figures.range_test import (
    range_test_panel,
    relative_panel,
    switching_point,
)

CURVE = RangeCurve(
    bits=(2,) * 6 + (3,) * 6 + (4,) * 6,
    metric=(10, 12, 11, 9, 10, 12, 12, 14, 30, 45, 60, 62, 64, 70, 72, 74, 76, 78),
    window=2,
    threshold=20,
    name="accuracy",
)
DIVERGED = RangeCurve(bits=(2, 2, 3, 3), metric=(0.1, 0.1, 0.2, math.nan), window=1, threshold=0.5)


def test_the_switching_point_is_where_the_mean_first_exceeds_start_plus_threshold():
    """3 bits start at 13; the means of two steps are 13, 22, 37.5, ... and the goal is 33."""
    assert switching_point(CURVE) == (9, 37.5)
    assert switching_point(DIVERGED) is None


def test_every_precision_has_its_steps_and_a_goal_up_to_the_lower_bound():
    panel = range_test_panel(CURVE)
    assert [curve.bits for curve in panel.curves] == [2, 3, 4]
    assert [curve.steps for curve in panel.curves] == [
        tuple(range(6)), tuple(range(6, 12)), tuple(range(12, 18)),
    ]  # fmt: skip
    assert [curve.goal for curve in panel.curves] == [31, 33, None]
    assert panel.curves[1].means[:3] == (12, 13, 22)
    assert panel.verdict == "learns from 3 bits on"


def test_a_test_that_nothing_passed_marks_what_diverged():
    panel = range_test_panel(DIVERGED)
    assert panel.switch is None
    assert [curve.is_finite for curve in panel.curves] == [True, False]
    assert "no gain above 0.5" in panel.verdict


def test_long_curves_are_thinned_and_keep_their_last_step():
    curve = RangeCurve(bits=(2,) * 400 + (3,) * 7, metric=(0.0,) * 407, window=1, threshold=1)
    first, last = range_test_panel(curve, limit=100).curves
    assert len(first.steps) == 100
    assert (first.steps[-1], last.steps[-1]) == (399, 406)


RELATIVE = RelativeCurve(
    runs=(
        PrecisionRun(0, 8, (4.0, 4.0, 3.0, 2.0, 2.0)),
        PrecisionRun(0, 3, (4.0, 4.0, 3.0, 3.0, 2.0)),
        PrecisionRun(0, 2, (4.0, 4.0, math.nan)),
        PrecisionRun(1, 8, (6.0, 6.0, 3.0, 2.0, 2.0)),
    ),
    window=2,
    share=0.5,
)


def test_the_goal_of_the_relative_criterion_is_the_share_of_the_drop_of_the_most_bits():
    """In the first repeat, which is drawn, L0 is 4 and 8 bits end at 2: half is a loss of 3."""
    panel = relative_panel(RELATIVE)
    assert panel.goal == 3.0
    assert panel.y_title == "loss, mean over 2 steps, first repeat"
    assert panel.last_window == (3, 4)
    assert panel.verdict == "lower bound 3 bits"
    assert panel.goal_name == "0.5 of the drop at 8 bits"
    assert [line.bits for line in panel.lines] == [2, 3, 8]
    assert [line.is_bound for line in panel.lines] == [False, True, False]
    assert panel.lines[2].means == (4.0, 4.0, 3.5, 2.5, 2.0)
    assert not panel.lines[0].is_finite


@pytest.mark.parametrize(
    "obj", [RELATIVE, RangeTest(low=3, high=8, curve=CURVE, backward=8, reset=False), DIVERGED]
)
def test_it_is_drawn(obj):
    figure = plot(obj)
    figure.draw_without_rendering()
    assert len(figure.axes) == 1
