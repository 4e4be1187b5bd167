"""A study's pictures."""

import math

import pytest

from bitcycle_lab.report import plot
from bitcycle_lab.report.figures.pareto import (
    cost_panel,
    draw_panel,
    period_panel,
)
from bitcycle_lab.study.summary import summarize
from bitcycle_lab.train.config import PrecisionConfig
from tests.bitcycle_lab.study.made_up import method, study_result

BASE = {0: 90.0, 1: 91.0, 2: 92.0}
METHODS = [
    (method("static", 8), BASE, 200.0),
    (method("CPT", "CR:3-8:8"), {0: 91.0, 1: 93.0, 2: 95.0}, 100.0),
    (method("low", 3), {0: 80.0, 1: 81.0}, 50.0),
    (method("float32", changes={"precision": PrecisionConfig()}), {0: 96.0}, 3200.0),
    (method("diverged", 2), {0: math.nan}, 20.0),
]
PERIODS = [
    METHODS[0],
    (method("R = 90", "stages:3@90,8", at=90, changes={"steps": 330}), BASE, 1.0),
    (method("R = 30", "stages:3@30,8", at=30, changes={"steps": 270}), BASE, 1.0),
]


def group_of(entries=METHODS, **changes):
    [group] = summarize(study_result(entries, **{"baseline": "static", **changes}))
    return group


def suite(num_methods):
    """Schedules of which two each cost the same."""
    return [
        (method(f"S{i}", f"CR:3-8:{i + 1}"), {0: 90.0 + i, 1: 91.0, 2: 92.0}, 100.0 + 50 * (i // 2))
        for i in range(num_methods)
    ]


# -- data -----------------------------------------------------------------------------------------


def test_means_stand_at_their_cost_with_their_interval():
    group = group_of()
    panel = cost_panel(group)
    assert [(point.label, point.x, point.summary.mean) for point in panel.points] == [
        ("static", 1.0, 91.0), ("CPT", 0.5, 93.0), ("low", 0.25, 80.5),
    ]  # fmt: skip
    static = panel.points[0]
    # n = 3: 4.303 standard errors of 1 / sqrt(3)
    assert static.bar == (pytest.approx(2.484, abs=1e-3), pytest.approx(2.484, abs=1e-3))
    assert static.values == BASE
    assert "static = 1" in panel.x_title
    assert [point.kind for point in (*panel.points, *panel.lines)] == [
        "static", "schedule", "static", "float32",
    ]  # fmt: skip


def test_what_costs_far_more_than_the_others_is_a_line_at_its_mean():
    [far] = cost_panel(group_of()).lines
    assert (far.label, far.summary.mean, far.bar) == ("float32", 96.0, None)
    few = cost_panel(group_of([METHODS[0], METHODS[3]]))
    assert few.lines == ()
    assert {1.0, 10.0} <= set(few.log_ticks)


def test_the_interval_of_two_seeds_does_not_set_the_limits_but_their_values_do():
    panel = cost_panel(group_of())
    low = panel.points[2]
    assert low.summary.low < panel.y_range[0] < 80.0
    many = {seed: 90.0 for seed in range(20)} | {20: 70.0}
    panel = cost_panel(group_of([(METHODS[0][0], many, 1.0)], seeds=tuple(many)))
    assert panel.y_range[0] > 70.0  # nor does one of many


def test_the_front_goes_through_the_means_that_nothing_cheaper_beats():
    panel = cost_panel(group_of())
    assert panel.front == ((0.25, 80.5), (0.5, 93.0))
    assert [point.method.is_on_front for point in panel.points] == [False, True, True]


def test_without_a_baseline_costs_are_in_bitops():
    panel = cost_panel(group_of(baseline=None))
    assert [point.x for point in panel.points] == [0.2, 0.1, 0.05]
    assert "kBitOPs" in panel.x_title


@pytest.mark.parametrize(("num_methods", "layout"), [(7, "points"), (8, "rows")])
def test_many_methods_of_few_costs_are_rows(num_methods, layout):
    panel = cost_panel(group_of(suite(num_methods), baseline="S0"))
    assert panel.layout == layout
    assert len(panel.points) == num_methods


def test_a_suite_tells_the_rank_correlation():
    assert "correlation" in cost_panel(group_of(suite(4), baseline="S0"), is_suite=True).note
    assert "correlation" not in cost_panel(group_of(suite(4), baseline="S0")).note


def test_critical_periods_stand_at_what_is_varied():
    panel = period_panel(group_of(PERIODS))
    assert [point.x for point in panel.points] == [30, 90]
    assert [line.summary.mean for line in panel.lines] == [91.0]
    assert "length of the deficit" in panel.x_title
    windows = [
        (method(f"{at}", "stages:8@9,3", at=at, changes={"name": f"w{at}"}), BASE, 1.0)
        for at in (0, 9)
    ]
    panel = period_panel(group_of(windows, baseline=None))
    assert panel.lines == ()
    assert "start of the window" in panel.x_title


def test_the_interval_of_the_baseline_of_critical_periods_is_in_the_range():
    panel = period_panel(group_of([(PERIODS[0][0], {0: 80.0, 1: 91.0, 2: 102.0}, 1), *PERIODS[1:]]))
    [base] = panel.lines
    assert base.summary.low < min(point.summary.low for point in panel.points)
    low, high = panel.y_range
    assert low < base.summary.low < base.summary.high < high


# -- drawings -------------------------------------------------------------------------------------


def test_every_point_is_named_in_the_picture():
    [axes] = plot(study_result(METHODS, baseline="static")).axes
    texts = " ".join(text.get_text() for text in axes.texts)
    assert all(name in texts for name in ("static", "CPT", "low", "float32"))
    assert "diverged" not in texts


def test_one_panel_has_the_means_the_front_and_what_costs_far_more_as_a_line():
    [axes] = draw_panel(cost_panel(group_of()), 5.6).axes
    drawn = [list(map(tuple, line.get_xydata())) for line in axes.lines]
    assert all([point] in drawn for point in ((1.0, 91.0), (0.5, 93.0), (0.25, 80.5)))
    assert [(0.25, 80.5), (0.5, 93.0)] in drawn  # the front
    assert [(0, 96), (1, 96)] in drawn
    [axes] = draw_panel(period_panel(group_of(PERIODS)), 5.6).axes
    drawn = [list(map(tuple, line.get_xydata())) for line in axes.lines]
    assert [(30, 91), (90, 91)] in drawn  # joined
    assert [(0, 91), (1, 91)] in drawn  # the baseline


def test_rows_are_named_on_the_axis():
    [axes] = plot(study_result(suite(10), baseline="S0", kind="suite")).axes
    assert [tick.get_text() for tick in axes.get_yticklabels()] == [f"S{i}" for i in range(10)]


def test_every_group_with_a_finished_run_has_a_panel():
    groups = [("one", BASE), ("two", BASE), ("not begun", {})]
    entries = [(method("static", 8, group=name, changes={"steps": 9 + i}), values, 2.0)
               for i, (name, values) in enumerate(groups)]  # fmt: skip
    figure = plot(study_result(entries, baseline="static"))
    titles = [axes.get_title(loc="left").partition("\n")[0] for axes in figure.axes]
    assert titles == ["one", "two"]


def test_a_study_without_a_run_has_no_picture():
    with pytest.raises(ValueError, match="has no finished run to draw; start it with: bitcycle"):
        plot(study_result([(method("a", 8), {}, 1.0)]))
    with pytest.raises(ValueError, match="has a finite value"):
        plot(study_result([(method("a", 8), {0: math.nan, 1: math.inf}, 1.0)]))
