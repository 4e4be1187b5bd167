"""Schedules that are a Python function, a list, or a class with `bits_at` alone."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitcycle.formats.catalogue import FORMATS
from bitcycle.schedules import Cycle, Delay, Schedule, Sequence, Stages, parse_schedule

from .strategies import any_bits, schedules


def rise(step, total):
    return 4 + 5 * step // total


class Alternate(Schedule):
    """Two numbers of bits in turn."""

    def __init__(self, low, high):
        self.low, self.high = low, high  # names that the base class has, too

    def bits_at(self, step, total_steps):
        return self.high if step % 2 else self.low


@dataclass
class Fixed(Schedule):
    """A dataclass that is neither frozen nor hashable."""

    levels: tuple
    name: str = "mine"

    def bits_at(self, step, total_steps):
        return self.levels[0]


class Plain(Schedule):
    def bits_at(self, step, total_steps):
        return rise(step, total_steps)


def test_a_function_gives_the_bits_of_each_step():
    schedule = parse_schedule(rise)
    assert schedule.values(8) == [4, 4, 5, 5, 6, 7, 7, 8]
    assert schedule(5, 8) == 7
    assert schedule.bit_widths(8) == {4, 5, 6, 7, 8}
    assert (schedule.over(8).low, schedule.over(8).high) == (4, 8)
    assert schedule.over(2).high == 6  # of that run
    with pytest.raises(ValueError, match="over"):
        _ = schedule.high


def test_a_list_has_the_bits_of_equal_stages():
    assert parse_schedule([4, 5, 6, 8]).values(8) == [4, 4, 5, 5, 6, 6, 8, 8]
    assert parse_schedule([4, 5, 6, 8]) == Stages([(4, 0.25), (5, 0.5), (6, 0.75), (8, 1.0)])
    assert parse_schedule(("nvfp4", None)).values(4) == [FORMATS["nvfp4"]] * 2 + [None] * 2
    thirds = parse_schedule([3, 4, 8])
    assert thirds.values(9) == [3] * 3 + [4] * 3 + [8] * 3
    assert parse_schedule(str(thirds)) == thirds
    assert parse_schedule([8]).values(3) == [8, 8, 8]


def test_a_list_that_is_no_list_of_bits_is_an_error():
    for bits, named in (([], "equal stages"), ([(4, 0.5), (8, 1.0)], "Stages"), ([4, 99], "99")):
        with pytest.raises(ValueError, match=named):
            parse_schedule(bits)


def test_a_class_needs_bits_at_alone():
    assert Alternate(4, 8).values(4) == [4, 8, 4, 8]
    assert Alternate(4, 8).preview(4).shares == {4: 0.5, 8: 0.5}
    assert Alternate(4, 8) == Alternate(4, 8) != Alternate(4, 6)
    assert Alternate(4, 8).preview(4).text().startswith("<Alternate(low=4, high=8)>: Two numbers")
    assert Fixed((5, 8)).preview(4).relative_cost == 1
    assert Plain().preview(8).shares == {4: 0.25, 5: 0.25, 6: 0.125, 7: 0.25, 8: 0.125}
    assert Plain().describe()


def test_a_rule_that_replaces_another_does_not_inherit_where_that_one_turns():
    class Noisy(Cycle):
        def bits_at(self, step, total_steps):
            return 3 + step % 2

    assert Noisy(3, 8, 1).values(6) == [3, 4, 3, 4, 3, 4]
    assert str(Noisy(3, 8, 1)).startswith("<Noisy(low=3, high=8")


def test_functions_are_parts_of_other_schedules():
    sequence = Sequence([(rise, 0.5), (16, 1.0)])
    assert sequence.values(8) == [4, 5, 6, 7, 16, 16, 16, 16]
    assert sequence.preview(8).schedule.high == 16
    delayed = Delay(lambda step, total: 8 - step, 0.5)
    assert delayed.values(8) == [5, 5, 5, 5, 8, 7, 6, 5]  # the lowest of the four that follow
    assert Delay(rise, 1.0).values(3) == [4, 4, 4]
    for schedule in (sequence, delayed):
        assert "<" in str(schedule)
        assert schedule.preview(8).text()


def test_what_a_function_returns_is_read_like_any_bits():
    def formats(step, total):
        return ("nvfp4", np.int64(8), None)[step]

    values = parse_schedule(formats).values(3)
    assert values == [FORMATS["nvfp4"], 8, None]
    assert type(values[1]) is int
    for wrong in (4.5, 0, 33, "fp64", True, [4]):
        with pytest.raises(ValueError, match="step 0 of <"):
            parse_schedule(lambda step, total, wrong=wrong: wrong).values(3)
        with pytest.raises(ValueError, match="step 1 of <"):
            parse_schedule(lambda step, total, wrong=wrong: wrong)(1, 3)


def test_what_cannot_be_called_with_two_numbers_is_an_error_at_once():
    for wrong, named in ((lambda step: 4, "two numbers"), (Alternate, "Alternate"), (int, "int")):
        with pytest.raises(ValueError, match=named):
            parse_schedule(wrong)
    assert parse_schedule(partial(lambda bits, step, total: bits, 6)).values(2) == [6, 6]
    assert parse_schedule(max).values(3) == [3, 3, 3]  # a function without a signature


def test_it_has_a_name_and_says_that_it_has_no_text_only_where_text_is_needed():
    for schedule, shown in (
        (parse_schedule(rise), "<rise at test_function.py:"),
        (parse_schedule(lambda step, total: 4), "<lambda at test_function.py:"),
        (Alternate(4, 8), "<Alternate(low=4, high=8)>"),
    ):
        assert str(schedule).startswith(shown)
        assert repr(schedule)
        assert schedule.preview(4).to_dict()["definition"] is None
        with pytest.raises(ValueError, match="text form"):
            schedule.to_dict()
        with pytest.raises(ValueError, match="no text form"):
            parse_schedule(str(schedule))


def test_a_function_is_asked_once_per_step_of_a_run():
    asked = []

    def count(step, total):
        asked.append(step)
        return 4 if step < total // 2 else 8

    run = parse_schedule(count).over(64_000)
    assert run.values(64_000)[31_999:32_001] == [4, 8]
    assert run.preview(64_000).mean_bits == 6
    assert run.digest(64_000) == run.digest(64_000)
    assert run(63_999, 64_000) == 8
    assert asked == list(range(64_000))
    with pytest.raises(ValueError, match="64000"):
        run.values(100)


@given(schedule=schedules, total=st.integers(1, 200))
def test_a_function_with_the_bits_of_a_schedule_has_its_values_levels_and_digest(schedule, total):
    try:
        values = schedule.values(total)
    except ValueError:
        return
    function = parse_schedule(lambda step, total: schedule(step, total))
    assert function.values(total) == values
    assert function.digest(total) == schedule.digest(total)
    assert set(function.over(total).levels) == set(values)
    counts = function.preview(total, backward=8).steps_at
    assert dict(counts) == dict(schedule.preview(total, backward=8).steps_at)


@given(bits=st.lists(any_bits, min_size=1, max_size=40), other=any_bits, data=st.data())
def test_the_digest_differs_as_soon_as_one_step_does(bits, other, data):
    place = data.draw(st.integers(0, len(bits) - 1))
    changed = [*bits[:place], other, *bits[place + 1 :]]
    one, two = (
        parse_schedule(lambda step, total, values=values: values[step]).digest(len(bits))
        for values in (bits, changed)
    )
    assert (one == two) == (bits == changed)


def test_the_digest_of_a_long_cycle_needs_few_evaluations(monkeypatch):
    calls, bits_at = [], Cycle.bits_at
    monkeypatch.setattr(Cycle, "bits_at", lambda *args: calls.append(0) or bits_at(*args))
    Cycle(3, 8, cycles=32).digest(1_000_000)
    assert len(calls) < 5_000
