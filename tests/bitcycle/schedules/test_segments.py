"""Segments are the stretches of equal bits that the bits of all steps have."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from bitcycle.bits import PlainBits
from bitcycle.schedules import Schedule, parse_schedule
from bitcycle.schedules.segments import Segment, find_segments
from tests.bitcycle.schedules.strategies import schedules


def list_segments(schedule: Schedule, total_steps: int) -> list[Segment]:
    segments: list[Segment] = []
    start = 0
    for bits, same in groupby(schedule(step, total_steps) for step in range(total_steps)):
        stop = start + len(list(same))
        segments.append(Segment(start, stop, bits))
        start = stop
    return segments


@given(schedule=schedules, total_steps=st.integers(1, 200))
def test_any_schedule_has_the_segments_that_its_steps_have(
    schedule: Schedule, total_steps: int
) -> None:
    try:
        schedule.check_span(total_steps)
    except ValueError:
        reject()  # too long for the run
    assert find_segments(schedule, total_steps) == list_segments(schedule, total_steps)


def test_other_schedules_have_theirs_too() -> None:
    for text in (
        "fp32",
        "CR:8-32:3",
        "stages:16@0.25,8@0.9,fp32",
        "seq(CR:3-8:2@0.8, fp32)",
        "delay@1.0(CR:3-8:2)",
        "delay@0.5(seq(triangle:3-8:2@0.5, 8))",
        "CR:8-8:4",
    ):
        for total_steps in (12, 97, 100):
            schedule = parse_schedule(text)
            assert find_segments(schedule, total_steps) == list_segments(schedule, total_steps)


def test_few_evaluations_are_enough_for_a_long_run(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = parse_schedule("CT:3-8:2")
    rule, steps = type(schedule).bits_at, []

    def bits_at(self: Schedule, step: int, total_steps: int) -> PlainBits:
        steps.append(step)
        return rule(self, step, total_steps)

    monkeypatch.setattr(type(schedule), "bits_at", bits_at)
    segments = find_segments(schedule, 1_000_000)
    assert [segment.bits for segment in segments] == [8, 7, 6, 5, 4, 3, 4, 5, 6, 7, 8]
    assert len(steps) < 300  # 12 segments x (log2 of 500,000 and a first look)


def test_a_schedule_that_the_run_cannot_hold_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"cycles \(8\).*7"):
        find_segments(parse_schedule("CR:3-8:8"), 7)
