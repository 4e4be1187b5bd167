"""Pictures of range tests."""

import math

import pytest

from bitcycle_lab.report import plot
from bitcycle_lab.report.figures.range_test import goal, switching_point, window_means
from tests.bitcycle.test_range_criteria import paper, relative

PAPER = paper(
    {2: (10, 12, 11, 9, 10, 12), 3: (12, 14, 30, 45, 60, 62)}, threshold=20.0, name="accuracy"
)
DIVERGED = paper({2: (0.1, 0.1), 3: (0.2, math.nan)}, window=1, threshold=0.5)
RELATIVE = relative(
    (0, 8, (4.0, 4.0, 3.0, 2.0, 2.0)),
    (0, 3, (4.0, 4.0, 3.0, 3.0, 2.0)),
    (0, 2, (4.0, 4.0, math.nan)),
    (1, 8, (6.0, 6.0, 3.0, 2.0, 2.0)),
    share=0.5,
)


def test_the_switching_point_is_where_the_mean_first_exceeds_start_plus_threshold():
    """3 bits start at 13; the means of two steps are 13, 22, 37.5, ... and the goal is 33."""
    run = PAPER.runs[1]
    assert goal(PAPER, run) == 33
    assert window_means(PAPER, run)[:4] == [12, 13, 22, 37.5]
    assert switching_point(PAPER, run) == 3
    falling = paper({2: (4.0, 3.9, 3.0)}, window=1, threshold=0.5, higher_is_better=False)
    assert switching_point(falling, falling.runs[0]) == 2


def test_the_goal_of_the_relative_criterion_is_the_share_of_the_gain_of_the_most_bits():
    """In the first repeat, which is drawn, L0 is 4 and 8 bits end at 2: half is a loss of 3."""
    assert goal(RELATIVE, RELATIVE.runs[0]) == 3.0
    assert math.isnan(goal(DIVERGED, DIVERGED.runs[1]))


TOP_DIVERGED = relative((0, 8, (4.0, math.nan)))


@pytest.mark.parametrize("test", [RELATIVE, PAPER, DIVERGED, TOP_DIVERGED])
def test_it_is_drawn_with_a_line_per_precision(test):
    figure = plot(test)
    figure.draw_without_rendering()
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {str(bits) for bits in test.verdicts} <= {label.split(":")[0] for label in labels}
    assert test.basis in figure.axes[0].get_title(loc="left")
    if test.settings.is_paper:
        assert {"each step", "start + threshold"} <= set(labels)


def test_long_curves_are_thinned():
    figure = plot(paper({2: [0.0] * 1000}, window=1))
    assert len(figure.axes[0].lines[0].get_xdata()) == 300
