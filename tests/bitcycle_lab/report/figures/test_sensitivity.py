"""Pictures of sensitivities."""

import math

from bitcycle_lab.report import plot
from tests.bitcycle.test_sensitivity import made_up


def test_layers_are_bars_the_most_sensitive_on_top():
    figure = plot(made_up(a=0.9, b=0.2, c=0.2))
    figure.draw_without_rendering()
    left, right = figure.axes
    assert [text.get_text() for text in left.get_yticklabels()] == ["a", "b", "c"]
    assert [round(bar.get_width()) for bar in left.patches] == [90, 20, 20]
    assert [bar.get_width() for bar in right.patches] == [0.1] * 3
    colors = [bar.get_facecolor() for bar in left.patches]
    assert colors[0] != colors[1] == colors[2]
    assert left.get_ylim()[0] > left.get_ylim()[1]


def test_a_layer_that_diverged_has_a_cross():
    figure = plot(made_up(a=math.nan, b=0.2, c=0.1))
    figure.draw_without_rendering()
    crosses = [line for line in figure.axes[0].lines if line.get_marker() == "x"]
    assert [list(line.get_ydata()) for line in crosses] == [[0]]
