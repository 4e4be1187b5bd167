"""The bits of methods."""

from dataclasses import replace

import pytest

from bitcycle.report.page.bits import (
    MOST_SEGMENTS,
    compress,
    is_adaptive,
    logged_segments,
    schedules_of,
    segments_of,
    weight_segments,
)
from bitcycle.report.page.recorded import record
from bitcycle.schedules import parse_schedule
from bitcycle.train.config import PrecisionConfig

from .made_up import STEPS

PLATEAU = "plateau:3-8:window=40"


def with_precision(made, **precision):
    method = made.methods[1]
    config = replace(method.method.config, precision=PrecisionConfig(**precision))
    changed = replace(method, method=replace(method.method, config=config))
    return record(replace(made, methods=(changed,)))[0]


def test_roles_with_one_schedule_stand_together(made):
    method = with_precision(made, forward="CR:3-8:4", backward=8, grad=None)
    assert schedules_of(method) == {"CR:3-8:4": ["weight", "act"], "8": ["error"], "fp32": ["grad"]}


def test_patterns_are_named(made):
    method = with_precision(made, forward={"fc1": 4, "*": "CR:3-8:4"}, backward=8)
    assert schedules_of(method)["4"] == ["weight of fc1", "act of fc1"]


def test_segments_are_the_schedule_exactly(made):
    method = record(made)[1]
    segments = weight_segments(method)
    values = [bits for start, end, bits in segments for _ in range(start, end)]
    assert values == parse_schedule("CR:3-8:4").values(STEPS)


def test_adaptive_bits_and_bits_that_differ_by_layer_come_from_the_log(made):
    adaptive = with_precision(made, forward=PLATEAU, backward=8)
    assert is_adaptive(PLATEAU)
    assert segments_of(PLATEAU, adaptive, "weight") == logged_segments(adaptive, "weight")
    layered = with_precision(made, forward={"*": 3}, backward=8)
    assert weight_segments(layered) == logged_segments(layered, "weight")
    # as made up: step 4 has 3 + 4 % 5 bits, which held since step 0
    assert logged_segments(adaptive, "weight")[0] == (0, 4, 7)
    assert logged_segments(adaptive, "act") == [(0, STEPS, 3)]


def test_epochs_that_are_not_over_have_the_bits_of_the_log(made):
    method = made.methods[1]
    config = replace(method.method.config, steps=None, epochs=9.0)
    runs = tuple(
        replace(state, state="started", result=None, run=replace(state.run, config=config))
        for state in method.runs
    )
    unfinished = replace(method, method=replace(method.method, config=config), runs=runs)
    recorded = record(replace(made, methods=(unfinished,)))[0]
    assert weight_segments(recorded) == logged_segments(recorded, "weight")
    assert segments_of("CR:3-8:32000", recorded, "weight") == weight_segments(recorded)


def test_auto_that_nobody_found_has_no_bits(made):
    method = with_precision(made, forward="CR:auto-8:4", backward=8)
    assert weight_segments(method) == []
    assert not is_adaptive("CR:auto-8:4")


@pytest.mark.parametrize(("bits", "most"), [([3, 8], 8), ([4, 32], None), (None, None), (5, 5)])
def test_of_layers_that_differ_the_most_bits_are_shown(bits, most):
    from bitcycle.report.page.bits import _most

    assert _most(bits) == most


def test_long_runs_are_thinned():
    assert len(compress([3, 4] * 5000)) == MOST_SEGMENTS
