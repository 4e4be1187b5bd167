"""What every schedule has: range, JSON, equality, and a place in the registry."""

import json
import time
from dataclasses import FrozenInstanceError, dataclass
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings

from bitcycle.schedules import (
    SCHEDULES,
    Cycle,
    Delay,
    Ramp,
    Schedule,
    Sequence,
    Stages,
    Static,
    list_schedules,
    parse_schedule,
    schedule_from_dict,
)

from .strategies import schedules


@settings(deadline=None)
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


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "a schedule is a dict with a 'type'"),
        ({}, "a schedule is a dict with a 'type'"),
        ({"type": ["static"]}, "a schedule is a dict with a 'type'"),
        ({"type": "statik"}, "did you mean 'static'"),
        ({"type": "static"}, "static lacks 'bits'"),
        ({"type": "static", "bits": 8, "bit": 8}, "unknown field of static 'bit'"),
        ({"type": "static", "bits": "8"}, "bits must be"),
        ({"type": "delay", "schedule": 3.5, "start": 0.5}, "bits must be"),
        ({"type": "stages", "stages": {"type": "static", "bits": 8}}, "list of pairs"),
    ],
)
def test_a_bad_dict_is_a_value_error(data, message):
    with pytest.raises(ValueError, match=message):
        schedule_from_dict(data)


def test_a_bottomless_dict_is_a_value_error():
    data = {"type": "static", "bits": 8}
    for _ in range(2000):
        data = {"type": "delay", "start": 0.5, "schedule": data}
    with pytest.raises(ValueError, match="nested"):
        schedule_from_dict(data)


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


@pytest.mark.parametrize("step", [-1, 10, 11])
def test_a_step_outside_the_run_is_an_error(step):
    with pytest.raises(ValueError, match=f"step {step} is outside the run"):
        Cycle(3, 8, cycles=1)(step, 10)


def test_numpy_integers_are_steps_and_results_are_plain_ints():
    bits = Cycle(3, 8, cycles=1)(np.int64(9), np.int64(10))
    assert type(bits) is int


KNOWN_AHEAD = [i.name for i in list_schedules() if not parse_schedule(i.form).is_adaptive]


@pytest.mark.parametrize("name", KNOWN_AHEAD)
def test_64_000_steps_take_well_under_a_second(name):
    [form] = [info.form for info in list_schedules() if info.name == name]
    start = time.perf_counter()
    parse_schedule(form).values(64_000)
    assert time.perf_counter() - start < 1.0


@settings(deadline=None)
@given(schedule=schedules)
def test_low_and_high_enclose_every_value(schedule):
    total = 200_000
    low, high = (33 if bits is None else bits for bits in (schedule.low, schedule.high))
    try:
        values = [schedule(step, total) for step in range(0, total, 9973)]
    except ValueError:
        return
    assert all(low <= (33 if bits is None else bits) <= high for bits in values)


def test_every_type_describes_itself_in_one_line():
    for info in list_schedules():
        line = parse_schedule(info.form).describe()
        assert line
        assert "\n" not in line


def test_one_registered_class_is_enough_for_text_json_and_listing(monkeypatch):
    @dataclass(frozen=True, eq=False)
    class Coin(Schedule):
        """Even steps low, odd steps high."""

        low: int
        high: int

        forms: ClassVar[tuple[str, ...]] = ("coin:3-8",)

        def bits_at(self, step, total_steps):
            return self.high if step % 2 else self.low

        def text(self):
            return f"coin:{self.low}-{self.high}"

        def describe(self):
            return "a coin"

        @classmethod
        def read(cls, head, reader):
            reader.expect(":", "a range of bits")
            return cls(*reader.bit_range())

    monkeypatch.setitem(SCHEDULES._entries, "coin", Coin)
    schedule = parse_schedule("seq(COIN:3-8@0.5, fp32)")
    assert schedule.values(8) == [3, 8, 3, 8, None, None, None, None]
    assert parse_schedule(str(schedule)) == schedule
    assert schedule_from_dict(schedule.to_dict()) == schedule
    assert "coin" in [info.name for info in list_schedules()]
    with pytest.raises(ValueError, match=r"coin:3-8 \|"):
        parse_schedule("?")
