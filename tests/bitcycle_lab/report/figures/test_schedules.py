"""Bits over steps."""

from dataclasses import replace

import pytest

from bitcycle.schedules import Cycle, parse_schedule
from bitcycle_lab.report import plot
from bitcycle_lab.report.figures.schedules import (
    bits_axis,
    draw_panel,
    draw_previews,
    method_panels,
    preview_panel,
)
from bitcycle_lab.report.runs import method_logs
from bitcycle_lab.train.config import PrecisionConfig


def steps_of(panel, number=0):
    """The bits at every step."""
    found = panel.lines[number].segments
    return [bits for start, end, bits in found for _ in range(start, end)]


def test_a_preview_has_the_bits_of_every_step_its_bound_and_its_cost():
    panel = preview_panel(Cycle(3, 8, cycles=2, profile="linear").preview(20))
    assert panel.lines[0].segments[:3] == ((0, 1, 3), (1, 4, 4), (4, 5, 5))
    assert steps_of(panel) == Cycle(3, 8, cycles=2, profile="linear").values(20)
    assert (panel.title, panel.top, panel.num_steps) == ("LR:3-8:2", 8, 20)
    assert "of static 8" in panel.note


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
def test_the_bits_axis_has_few_ticks_and_both_ends(text, labels):
    assert list(preview_panel(parse_schedule(text).preview(1000)).axis.labels) == labels


def test_float32_is_drawn_above_the_most_bits():
    scale = bits_axis([3, 8, None])
    assert scale.height(None) > scale.height(8) == 8
    assert scale.range[1] > scale.height(None)


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("CT:mxfp4,nvfp4,bf16:2", ["mxfp4", "nvfp4", "bf16"]),
        ("CT:nvfp4,mxfp4,bf16:2", ["nvfp4", "mxfp4", "bf16"]),
        ("seq(CR:3-5:2@0.8, bf16)", ["3", "4", "5", "bf16"]),
        ("stages:nvfp4@0.5,fp32", ["nvfp4", "fp32"]),
        ("bf16", ["bf16"]),
    ],
)
def test_formats_are_rows_of_the_axis_in_the_order_of_the_ladder(text, labels):
    preview = parse_schedule(text).preview(1000, backward="bf16")
    panel = preview_panel(preview)
    scale = panel.axis
    assert (list(scale.labels), scale.title) == (labels, "format")
    assert [str(bits) if bits else "fp32" for bits in scale.tick_bits] == labels
    assert [scale.height(bits) for bits in scale.tick_bits] == list(range(len(labels)))
    assert panel.top == len(labels) - 1
    [axes] = draw_previews([preview]).axes
    assert [tick.get_text() for tick in axes.get_yticklabels()] == labels
    assert axes.get_ylabel() == "format"


def test_many_formats_have_few_ticks_and_both_ends():
    scale = bits_axis([*range(1, 28), parse_schedule("mxfp8").low, None], max_ticks=2)
    assert scale.labels == ("1", "fp32")
    assert len(bits_axis([*range(1, 28), parse_schedule("mxfp8").low, None]).labels) <= 9


def test_a_distinct_set_of_schedules_has_one_panel_with_the_methods_that_share_it(made):
    twin = replace(made.methods[0], method=replace(made.methods[0].method, label="twin"))
    panels = method_panels(method_logs(replace(made, methods=(*made.methods, twin))))
    assert len(panels) == 4
    assert panels[0].title == "static 8/8, twin"
    assert steps_of(panels[0]) == [8] * 40
    assert panels[1].lines[0].label == "weights, activations: CR:3-8:4"


def test_a_float32_method_has_no_panel(made):
    method = made.methods[0]
    config = replace(method.method.config, precision=PrecisionConfig())
    plain = replace(method, method=replace(method.method, config=config))
    assert method_panels(method_logs(replace(made, methods=(plain,)))) == []


def test_a_panel_holds_the_last_bits_to_the_end(made):
    [axes] = draw_panel(method_panels(method_logs(made))[0]).axes
    heights, edges, _ = axes.patches[-1].get_data()
    assert (list(heights), list(edges)) == ([8], [0, 40])


def test_nothing_to_draw_is_an_error():
    with pytest.raises(ValueError, match="at least one preview"):
        draw_previews([])


def test_previews_are_drawn_on_one_step_axis():
    figure = draw_previews([Cycle(3, 8, n).preview(1000) for n in (1, 2, 4)])
    assert [axes.get_xlabel() for axes in figure.axes] == ["", "", "step"]
    assert len(plot(Cycle(3, 8, 2), total_steps=50).axes) == 1
