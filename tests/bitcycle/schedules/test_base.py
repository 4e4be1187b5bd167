"""What every schedule has: JSON, equality, checks of bits, steps and times, a registry."""

import json
import math
import re
from dataclasses import FrozenInstanceError, dataclass
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitcycle.bits import order
from bitcycle.schedules import (
    SCHEDULES,
    Cycle,
    Delay,
    Ramp,
    Sequence,
    Stages,
    Static,
    list_schedules,
    parse_schedule,
    schedule_from_dict,
)
from bitcycle.schedules.base import (
    Ranged,
    check_range,
    check_step,
    check_time,
    check_total,
    default_backward,
    rint,
    to_spans,
    to_step,
)

from .strategies import schedules


@given(schedule=schedules)
def test_json_gives_an_equal_schedule_back(schedule):
    text = json.dumps(schedule.to_dict(), allow_nan=False)
    back = schedule_from_dict(json.loads(text))
    assert back == schedule
    assert hash(back) == hash(schedule)


def test_the_dict_is_readable():
    assert Sequence([(Cycle(3, 8, 8), 0.8), (Static(None), 1.0)]).to_dict() == {
        "type": "sequence",
        "schedules": [
            [
                {
                    "type": "cycle",
                    "low": 3,
                    "high": 8,
                    "cycles": 8,
                    "profile": "cosine",
                    "form": "repeated",
                    "reflect": "horizontal",
                },
                0.8,
            ],
            [{"type": "static", "bits": None}, 1.0],
        ],
    }


def test_formats_are_names_in_json():
    assert Stages([("nvfp4", 0.82), ("BF16", 1.0)]).to_dict() == {
        "type": "stages", "stages": [["nvfp4", 0.82], ["bf16", 1.0]],
    }  # fmt: skip
    assert schedule_from_dict({"type": "static", "bits": "mxfp8"}) == Static("mxfp8")


def test_formats_forward_have_no_default_backward():
    for text in (
        "nvfp4", "bf16", "fp16", "CR:mxfp4,mxfp8,bf16:8", "seq(CR:3-8:8@0.8, bf16)",
        "stages:3@0.5,mxfp4@0.6,8",  # inside its bounds of 3 and 8
        "plateau:4,mxfp8,fp32",
    ):  # fmt: skip
        with pytest.raises(ValueError, match=re.escape(text)):
            default_backward(parse_schedule(text))
    with pytest.raises(ValueError, match="8 and mxfp4"):
        default_backward(Static(8), Static("mxfp4"))
    assert default_backward(parse_schedule("CR:3,4,8:8")) == 8


def test_a_bad_dict_is_a_value_error():
    for data, named in (
        (None, "None"),
        ({}, "'type'"),
        ({"type": ["static"]}, "static"),
        ({"type": "statik"}, "did you mean 'static'"),
        ({"type": "static"}, "'bits'"),
        ({"type": "static", "bits": 8, "bit": 8}, "'bit'"),
        ({"type": "static", "bits": "8"}, "'8'"),
        ({"type": "delay", "schedule": 3.5, "start": 0.5}, "3.5"),
        ({"type": "stages", "stages": {"type": "static", "bits": 8}}, "stages"),
    ):
        with pytest.raises(ValueError, match=named):
            schedule_from_dict(data)


def test_a_bottomless_dict_is_a_value_error():
    data = {"type": "static", "bits": 8}
    for _ in range(2000):
        data = {"type": "delay", "start": 0.5, "schedule": data}
    with pytest.raises(ValueError, match="nested"):
        schedule_from_dict(data)


@given(schedule=schedules, total=st.integers(1, 300))
def test_values_equal_the_call_at_every_step_or_both_refuse(schedule, total):
    try:
        values = schedule.values(total)
    except ValueError:
        with pytest.raises(ValueError, match=r"."):
            schedule(0, total)
        with pytest.raises(ValueError, match=r"."):
            schedule.notes(total)
        return
    assert values == [schedule(step, total) for step in range(total)]
    assert len(values) == total
    assert isinstance(schedule.notes(total), list)
    str(schedule.preview(total))


def test_step_one_is_not_the_whole_run():
    assert Ramp(3, 8, until=1) != Ramp(3, 8, until=1.0)
    assert Delay(8, start=1) != Delay(8, start=1.0)
    assert len({Ramp(3, 8, until=1), Ramp(3, 8, until=1.0), Ramp(3, 8, until=1)}) == 2
    assert Static(8) != 8


def test_a_schedule_is_frozen():
    with pytest.raises(FrozenInstanceError):
        Cycle(3, 8).low = 4
    with pytest.raises(FrozenInstanceError):
        Stages([(8, 1.0)]).stages = ()


def test_numpy_integers_are_steps_and_results_are_plain_ints():
    bits = Cycle(3, 8, cycles=1)(np.int64(9), np.int64(10))
    assert type(bits) is int


@given(schedule=schedules)
def test_low_and_high_enclose_every_value(schedule):
    total = 200_000
    low, high = order(schedule.low), order(schedule.high)
    try:
        values = [schedule(step, total) for step in range(0, total, 9973)]
    except ValueError:
        return
    assert all(low <= order(bits) <= high for bits in values)


def test_one_registered_class_is_enough_for_text_json_and_listing(monkeypatch):
    @dataclass(frozen=True, eq=False, repr=False)
    class Coin(Ranged):
        """Even steps low, odd steps high."""

        every: int = 1
        first: str = "low"

        grammar: ClassVar[str] = ":levels@every[:first=]"
        forms: ClassVar[tuple[str, ...]] = ("coin:3-8",)

        def bits_at(self, step, total_steps):
            return self.high if step // self.every % 2 else self.low

    monkeypatch.setitem(SCHEDULES._entries, "coin", Coin)
    schedule = parse_schedule("seq((COIN:3-8)@0.5, fp32)")
    assert schedule.values(8) == [3, 8, 3, 8, None, None, None, None]
    assert parse_schedule(str(schedule)) == schedule
    assert schedule_from_dict(schedule.to_dict()) == schedule
    assert str(parse_schedule("coin:4,bf16@2:first=low")) == "coin:4,bf16@2"
    assert str(parse_schedule("coin:4-8:first=high")) == "coin:4-8@1:first=high"
    assert parse_schedule("coin:4-8").describe() == "Even steps low, odd steps high"
    assert "coin" in [info.name for info in list_schedules()]
    with pytest.raises(ValueError, match="coin:3-8"):
        parse_schedule("coin:x")


def test_ties_go_to_even_after_nine_decimals():
    for value, expected in ((3.5, 4), (4.5, 4), (5.5, 6), (6.5, 6), (4.5000000001, 4), (4.51, 5)):
        assert rint(value) == expected


def test_float32_is_above_every_number_of_bits():
    assert sorted([None, 32, 3], key=order) == [3, 32, None]


def test_a_run_has_a_positive_whole_number_of_steps():
    for total in (0, -1, 2.0, "8", None):
        with pytest.raises(ValueError, match="total_steps"):
            check_total(total)


def test_a_step_lies_inside_the_run():
    for step in (-1, 10, 1.0, None):
        with pytest.raises(ValueError, match="step"):
            check_step(step, 10)


def test_a_bad_range_names_the_end_and_its_value():
    for low, high, named in (
        (8, 3, "low.*8.*high.*3"), (0, 8, "low.*0"), (3, 33, "high.*33"), (3, None, "high.*fp32"),
        (True, 8, "low.*True"), (3.0, 8, "low.*3.0"), ("mxfp4", "bf16", "low.*mxfp4"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=named):
            check_range(low, high)


def test_a_fraction_is_the_nearest_step_with_ties_to_even():
    for time, total, step in (
        (0.0, 10, 0),
        (1.0, 10, 10),
        (1, 10, 1),
        (10, 10, 10),
        (0.2, 64_000, 12_800),
        (0.1, 30, 3),  # 0.1 * 30 is 3.0000000000000004
        (0.5, 5, 2),  # a tie goes to the even step
        (0.5, 7, 4),
        (0.04, 10, 0),
        (0.96, 10, 10),
    ):
        assert to_step(time, total, "start") == step


def test_a_time_is_a_step_count_or_a_fraction():
    for time in (-1, -0.1, 1.1, math.nan, math.inf, True, None, "0.5"):
        with pytest.raises(ValueError, match="start"):
            check_time(time, "start")


def test_a_step_count_beyond_the_run_is_an_error():
    for schedule in (Ramp(3, 8, until=11), Delay(8, start=11), Stages([(3, 11), (8, 1.0)])):
        with pytest.raises(ValueError, match="11"):
            schedule(0, 10)
        assert schedule(0, 11) == schedule.low


def test_bad_end_points_are_refused_at_birth():
    for ends, named in (
        ([], "at least one"), ([0.5], "0.5"), ([0.5, 1], "1"), ([0.5, 0.5, 1.0], "0.5 after 0.5"),
        ([20, 10, 1.0], "10 after 20"), ([1.0, 1.0], "1.0 after 1.0"), ([0, 1.0], "0 after 0"),
        ([0.0, 1.0], "0.0 after 0"), ([True, 1.0], "True"),
    ):  # fmt: skip
        for schedule_type in (Stages, Sequence):
            with pytest.raises(ValueError, match=named):
                schedule_type([(8, end) for end in ends])


def test_mixed_end_points_that_cross_are_an_error_of_that_run_only():
    stages = Stages([(3, 50), (4, 0.5), (8, 1.0)])
    with pytest.raises(ValueError, match="step 25"):
        stages(0, 50)
    assert stages.values(200) == [3] * 50 + [4] * 50 + [8] * 100


def test_spans_cover_the_run_and_may_be_empty():
    assert to_spans((0.2, 0.21, 1.0), 10, "x") == [(0, 2), (2, 2), (2, 10)]
