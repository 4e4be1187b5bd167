"""The demo's picture: what each method reached, cost and took."""

import pytest

from bitcycle_lab.report import plot
from bitcycle_lab.report.figures.demo import demo_rows, draw_times
from tests.bitcycle_lab.report.made_up import demo_result


def test_a_row_has_accuracy_cost_and_time_against_float32():
    rows = demo_rows(demo_result())
    assert [(row.label, row.cost, row.time) for row in rows] == [
        ("float32", 1.0, 1.0), ("static 8/8", 0.0625, 0.5), ("CPT 4-8/8", 0.03125, 0.625),
    ]  # fmt: skip
    assert {row.values for row in rows} == {(98.1, 98.9, 99.4)}


def bars(axes):
    return [bar.get_width() for bar in axes.patches]


def test_cost_and_time_are_bars_and_every_seed_is_a_dot():
    accuracy, cost, time = plot(demo_result()).axes
    assert (bars(cost), bars(time)) == ([1.0, 0.0625, 0.03125], [1.0, 0.5, 0.625])
    dots, mean = accuracy.lines[:2]
    assert list(dots.get_xdata()) == [98.1, 98.9, 99.4]
    assert list(mean.get_xdata()) == pytest.approx([98.8, 98.8])
    assert [tick.get_text() for tick in accuracy.get_yticklabels()] == [
        "float32", "static 8/8", "CPT 4-8/8",
    ]  # fmt: skip


def test_the_page_draws_the_times_alone():
    [axes] = draw_times(demo_result(), 5.6).axes
    assert bars(axes) == [1.0, 0.5, 0.625]
