"""Pictures of schedules."""

import pytest

from bitcycle.report import plot
from bitcycle.report.schedules import draw_previews
from bitcycle.schedules import Cycle, parse_schedule

pytest.importorskip("matplotlib")


def _stairs(axes):
    from matplotlib.patches import StepPatch

    return [patch.get_data() for patch in axes.patches if isinstance(patch, StepPatch)]


def test_a_schedule_is_drawn_as_steps_at_its_bits():
    [axes] = plot(Cycle(3, 8, cycles=2, profile="linear"), total_steps=20).axes
    fill, line = _stairs(axes)
    assert line.values.tolist() == [3, 4, 5, 6, 7, 8, 3, 4, 5, 6, 7, 8]
    assert line.edges.tolist() == [0, 1, 4, 5, 8, 9, 10, 11, 14, 15, 18, 19, 20]
    assert fill.values.tolist() == line.values.tolist()


def test_ticks_are_whole_bits_and_axes_are_labelled():
    [axes] = plot(Cycle(3, 8, cycles=2), total_steps=100).axes
    assert axes.get_yticks().tolist() == [3, 4, 5, 6, 7, 8]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "bits")
    assert axes.get_title(loc="left") == "CR:3-8:2"
    assert axes.get_xlim() == (0, 100)


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("CR:8-32:1", ["8", "11", "14", "17", "20", "23", "26", "29", "32"]),
        ("stages:3@0.5,fp32", ["3", "fp32"]),
        ("fp32", ["fp32"]),
        ("8", ["8"]),
        ("stages:3@0.5,16", ["3", "6", "8", "10", "12", "14", "16"]),
    ],
)
def test_the_bits_axis_is_labelled(text, labels):
    [axes] = plot(parse_schedule(text).preview(1000)).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == labels


def test_several_previews_share_the_step_axis():
    figure = draw_previews([Cycle(3, 8, n).preview(1000) for n in (1, 2, 4)])
    assert [axes.get_xlabel() for axes in figure.axes] == ["", "", "step"]


def test_nothing_to_draw_is_an_error():
    with pytest.raises(ValueError, match="at least one preview"):
        draw_previews([])


def test_a_preview_draws_the_same_as_its_schedule():
    one = Cycle(3, 8, cycles=2)
    first, second = plot(one, total_steps=50), plot(one.preview(50))
    assert _stairs(first.axes[0])[1].values.tolist() == _stairs(second.axes[0])[1].values.tolist()
