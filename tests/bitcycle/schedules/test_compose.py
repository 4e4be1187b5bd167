"""Delay and Sequence, as literal lists."""

import pytest

from bitcycle.schedules import (
    Cycle,
    Delay,
    Sequence,
    Static,
    parse_schedule,
    schedule_from_dict,
)


def test_a_delay_is_low_then_the_schedule_over_what_is_left():
    # 3 + 5 (1 - cos(pi k/9)) / 2: 3 3.15 3.58 4.25 5.07 5.93 6.75 7.42 7.85
    expected = [3, 3, 3, 3, 3, 4, 4, 5, 6, 7, 7, 8]
    assert Delay(Cycle(3, 8, cycles=1), start=0.25).values(12) == expected
    assert Delay("CR:3-8:1", start=3).values(12) == expected


def test_a_delayed_schedule_goes_through_all_of_its_cycles():
    inner = Cycle(3, 8, cycles=32)
    assert Delay(inner, start=0.25).values(64_000) == [3] * 16_000 + inner.values(48_000)
    assert Delay(inner, start=0.25).count_cycles(64_000) == 32


def test_a_delay_of_nothing_is_the_schedule():
    for start in (0, 0.0):
        assert Delay("CR:3-8:2", start).values(100) == Cycle(3, 8, 2).values(100)


def test_a_delay_until_the_end_is_legal_and_never_starts():
    never = Delay("CR:3-8:32", start=1.0)
    assert never.values(10) == [3] * 10
    assert never.notes(10) == []
    assert never.count_cycles(10) == 0
    assert not never.preview(10).reaches_top


def test_a_delay_that_happens_to_reach_the_end_is_noted():
    [note] = Delay("CR:3-8:1", start=10).notes(10)
    assert "never starts" in note


def test_the_schedule_must_fit_what_the_delay_leaves():
    with pytest.raises(ValueError, match=r"cycles \(8\).*6"):
        Delay("CR:3-8:8", start=0.25)(0, 8)


def test_a_sequence_is_this_list():
    # CR over 4 steps: 3 3.73 5.5 7.27; then Static
    schedule = Sequence([("CR:3-8:2", 0.8), (None, 1.0)])
    assert schedule.values(10) == [3, 4, 6, 7, 3, 4, 6, 7, None, None]
    assert (schedule.low, schedule.high) == (3, None)


def test_each_part_of_a_sequence_sees_its_own_span():
    a, b = Cycle(3, 8, cycles=3), Cycle(4, 6, cycles=2, form="triangular")
    assert Sequence([(a, 0.2), (b, 1.0)]).values(1000) == a.values(200) + b.values(800)
    assert Sequence([(a, 300), (b, 1.0)]).values(1000) == a.values(300) + b.values(700)
    assert Sequence([(a, 0.2), (b, 1.0)]).count_cycles(1000) == 5


def test_a_part_without_a_step_is_skipped_and_noted():
    schedule = Sequence([(3, 0.2), ("CR:3-8:32", 0.21), (8, 1.0)])
    assert schedule.values(10) == [3, 3] + [8] * 8
    [note] = schedule.notes(10)
    assert "part 2" in note


def test_notes_of_the_parts_are_passed_on():
    assert Sequence([("CT:3-8:3", 0.5), (8, 1.0)]).notes(1000) == Cycle(
        3, 8, 3, form="triangular"
    ).notes(500)


def test_a_sequence_must_be_pairs():
    for parts in (None, 8, [8], [("CR:3-8", 0.5, 1.0)], ["CR:3-8"]):
        with pytest.raises(ValueError, match="pairs"):
            Sequence(parts)


def test_nesting_has_a_limit():
    schedule = Static(8)
    for _ in range(31):
        schedule = Delay(schedule, 0.5)
    assert parse_schedule(str(schedule)) == schedule
    assert schedule_from_dict(schedule.to_dict()) == schedule
    with pytest.raises(ValueError, match="32"):
        Delay(schedule, 0.5)
