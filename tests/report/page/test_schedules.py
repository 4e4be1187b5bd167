"""The schedules' charts."""

from dataclasses import replace

from bitcycle.report.page.recorded import record
from bitcycle.report.page.schedules import schedules_section
from bitcycle.train.config import PrecisionConfig

from .made_up import Elements


def test_each_distinct_set_is_drawn_once_with_the_names_that_have_it(made):
    twin = replace(made.methods[0], method=replace(made.methods[0].method, label="twin"))
    both = replace(made, methods=(*made.methods, twin))
    seen = Elements(schedules_section(record(both)))
    assert len(seen.data) == 4
    assert "static 8/8, twin" in seen.text
    assert "weights, activations: CR:3-8:4" in seen.text


def test_static_bits_are_a_line_at_their_height(made):
    [figure, *_] = Elements(schedules_section(record(made))).data
    [line] = figure["data"]  # all four roles have 8
    assert line["y"] == [8, 8]


def test_float32_has_no_chart(made):
    method = made.methods[0]
    config = replace(method.method.config, precision=PrecisionConfig())
    plain = replace(method, method=replace(method.method, config=config))
    assert schedules_section(record(replace(made, methods=(plain,)))) is None
