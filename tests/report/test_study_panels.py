"""What the panels of a study's picture show."""

import pytest

from bitcycle.report.study_look import Look
from bitcycle.report.study_panels import (
    draw_cost,
    draw_names,
    draw_periods,
    draw_relation,
    draw_spread,
    period_label,
)
from bitcycle.study.summary import summarize
from tests.study.made_up import method, study_result

figure_module = pytest.importorskip("matplotlib.figure")

BASE = {0: 90.0, 1: 91.0, 2: 92.0}
METHODS = [
    (method("static", 8), BASE, 200.0),
    (method("CPT", "CR:3-8:8"), {0: 91.0, 1: 93.0, 2: 95.0}, 100.0),
    (method("low", 3), {0: 80.0, 1: 81.0}, 50.0),
    (method("float32", "fp32"), {0: 96.0}, 3200.0),
]


def drawn(draw, entries=METHODS, look=None, **changes):
    [group] = summarize(study_result(entries, **{"baseline": "static", **changes}))
    axes = figure_module.Figure().add_subplot()
    draw(axes, group, look or Look.of(row.label for row in group.rows))
    return axes, group


def bars(axes):
    """(x, mean, low, high) of every mean with its interval; low and high None without a bar."""
    found = []
    for container in axes.containers:
        point, _, lines = container.lines
        x, y = point.get_xdata()[0], point.get_ydata()[0]
        low, high = lines[0].get_segments()[0][:, 1] if lines else (None, None)
        found.append((x, y, low, high))
    return found


def test_means_stand_at_their_cost_with_their_interval():
    axes, group = drawn(draw_cost)
    for (x, y, low, high), row in zip(bars(axes), group.rows, strict=True):
        assert (x, y) == (row.relative_cost, row.summary.mean)
        assert (low, high) == (
            (None, None)
            if row.summary.low is None
            else pytest.approx((row.summary.low, row.summary.high))
        )
    assert bars(axes)[3][2] is None  # one seed, no bar
    assert axes.get_xscale() == "log"
    assert "static = 1" in axes.get_xlabel()


def test_the_bar_of_two_seeds_does_not_set_the_limits():
    axes, group = drawn(draw_cost)
    assert group.rows[2].summary.low < axes.get_ylim()[0] < 80


def test_the_front_is_a_line_through_its_means():
    axes, _ = drawn(draw_cost)
    [front] = [line for line in axes.lines if line.get_drawstyle() == "steps-post"]
    assert front.get_xdata().tolist() == [0.25, 0.5, 16.0]
    assert front.get_ydata().tolist() == [80.5, 93.0, 96.0]


def test_a_suite_names_its_points_and_what_it_leaves_out():
    axes, group = drawn(draw_relation)
    draw_names(axes, group, is_suite=True)
    assert {text.get_text() for text in axes.texts} == {"static", "CPT", "low"}
    title = " ".join(axes.get_title(loc="left").split())
    assert "Rank correlation -, 1 schedules" in title
    assert "not drawn: float32 (cost 16.0)" in title
    assert len(bars(axes)) == 3


def test_boxes_need_three_seeds_and_carry_p():
    axes, _ = drawn(draw_spread)
    assert len(axes.patches) == 2
    labels = [tick.get_text() for tick in axes.get_xticklabels()]
    assert labels[0] == "static"
    assert labels[1].startswith("CPT\np = ")
    assert labels[2:] == ["low", "float32"]


def test_critical_periods_are_drawn_against_what_is_varied():
    entries = [
        METHODS[0],
        (method("R = 90", "stages:3@90,8", at=90, changes={"steps": 330}), BASE, 1.0),
        (method("R = 30", "stages:3@30,8", at=30, changes={"steps": 270}), BASE, 1.0),
    ]
    axes, group = drawn(draw_periods, entries)
    assert [bar[0] for bar in bars(axes)] == [30, 90]
    assert axes.get_xlabel() == period_label(group) == "length of the deficit, steps"
    windows = [
        (method(f"{at}", "stages:8@9,3", at=at, changes={"name": f"w{at}"}), BASE, 1.0)
        for at in (0, 9)
    ]
    axes, _ = drawn(draw_periods, windows, baseline=None)
    assert axes.get_xlabel() == "start of the window, step"
