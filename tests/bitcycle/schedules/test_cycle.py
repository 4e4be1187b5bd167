"""The ten named schedules against closed forms written out here a second time."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitcycle.schedules import (
    PROFILES,
    Anneal,
    Cycle,
    Profile,
    Triangle,
    list_schedules,
    parse_schedule,
    schedule,
)

from .strategies import cycle_schedules

TOTAL = 64_000


def naive(name, low, high, cycles, total):
    """(t mod T) / T and the paper's formulas, for a total that is a multiple of the cycles."""
    length = total // cycles
    t = np.arange(total)
    p = (t % length) / length
    is_decay = (t // length) % 2 == 0

    def grow(p):
        return {
            "L": lambda: p,
            "C": lambda: 0.5 * (1 - np.cos(np.pi * p)),
            "E": lambda: 1 - np.exp(-4 * p),
            "R": lambda: 1 - (1 - p) / (0.1 + 0.9 * (1 - p)),
        }[name[0]]()

    if name[1] == "R":
        unit = grow(p)
    elif name.endswith("-V"):
        unit = np.where(is_decay, 1 - grow(p), grow(p))
    else:
        unit = np.where(is_decay, grow(1 - p), grow(p))
    return np.rint(np.round(low + (high - low) * unit, 9)).astype(int).tolist()


NAMES = ["LR", "CR", "ER", "RR", "LT", "CT", "ET-H", "ET-V", "RT-H", "RT-V"]


@pytest.mark.parametrize("name", NAMES)
def test_every_step_of_a_long_run_equals_the_closed_form(name):
    for cycles in (8, 32):
        values = schedule(name, low=3, high=8, cycles=cycles).values(TOTAL)
        assert values == naive(name, 3, 8, cycles, TOTAL)


# One cycle of CR (and both of CT) by hand: 3 + 5 (1 - cos(pi k/10)) / 2 for k = 0..9 is
# 3.00 3.12 3.48 4.03 4.73 5.50 6.27 6.97 7.52 7.88; the others likewise.
LITERAL = {
    "LR": [3, 4, 4, 4, 5, 6, 6, 6, 7, 8],  # 3 3.5 4 4.5 5 5.5 6 6.5 7 7.5, half to even
    "CR": [3, 3, 3, 4, 5, 6, 6, 7, 8, 8],
    "ER": [3, 5, 6, 6, 7, 7, 8, 8, 8, 8],  # 3 4.65 5.75 6.49 6.99 7.32 7.55 7.70 7.80 7.86
    "RR": [3, 3, 3, 3, 3, 3, 4, 4, 4, 5],  # 3 3.05 3.12 3.21 3.31 3.45 3.65 3.95 4.43 5.37
}


def test_one_cycle_of_ten_steps_is_this_list():
    for name in LITERAL:
        one = schedule(name, low=3, high=8, cycles=2)
        assert one.values(20) == LITERAL[name] * 2


def test_triangular_cycles_go_down_then_up():
    for name, down, up in (
        ("LT", [8, 8, 7, 6, 6, 6, 5, 4, 4, 4], LITERAL["LR"]),  # 8 7.5 7 6.5 6 5.5 5 4.5 4 3.5
        ("CT", [8, 8, 8, 7, 6, 6, 5, 4, 3, 3], LITERAL["CR"]),  # 11 minus the list above
        ("ET-H", [8, 8, 8, 8, 8, 7, 7, 6, 6, 5], LITERAL["ER"]),  # 7.91, then ER backwards
        ("ET-V", [8, 6, 5, 5, 4, 4, 3, 3, 3, 3], LITERAL["ER"]),  # 11 minus ER
        ("RT-H", [8, 5, 4, 4, 4, 3, 3, 3, 3, 3], LITERAL["RR"]),  # 8, then RR backwards
        ("RT-V", [8, 8, 8, 8, 8, 8, 7, 7, 7, 6], LITERAL["RR"]),  # 11 minus RR
    ):
        one = schedule(name, low=3, high=8, cycles=4)
        assert one.values(40) == (down + up) * 2


def test_cpt_spends_these_steps_at_each_bit_width():
    # one cycle of 2,000 steps: first step of each bit-width is ceil(2000 acos(1 - 2y) / pi)
    values = Cycle(3, 8, cycles=32).values(TOTAL)[:2000]
    assert [values.count(bits) for bits in range(3, 9)] == [410, 329, 261, 262, 329, 409]
    switches = [t for t in range(1, 2000) if values[t] != values[t - 1]]
    assert switches == [410, 739, 1000, 1262, 1591]


def test_other_ranges_spend_these_steps():
    for low, high, steps in (
        (3, 6, [536, 465, 464, 535]),
        (4, 8, [461, 379, 321, 379, 460]),
        (4, 6, [667, 667, 666]),
    ):
        values = Cycle(low, high, cycles=32).values(TOTAL)[:2000]
        assert [values.count(bits) for bits in range(low, high + 1)] == steps


def test_rex_needs_legs_of_this_length():
    for low, high, steps in (
        (3, 8, 91),
        (4, 8, 71),
        (3, 6, 51),
        (5, 8, 51),
        (4, 6, 31),
        (5, 6, 11),
    ):
        for name in ("RR", "RT-H"):
            one = schedule(name, low=low, high=high, cycles=2)
            assert one.shortest_cycle() == steps
            assert one.notes(2 * steps) == []
            assert len(one.notes(2 * (steps - 1))) == 1


def test_a_vertical_decay_of_rex_can_need_one_step_more():
    # at 91 steps its last value is 3.5 exactly, and half to even is 4
    assert schedule("RT-V", low=3, high=8).shortest_cycle() == 92


def test_short_legs_of_rex_end_below_the_top_and_say_so():
    for name in ("RR", "RT-H", "RT-V"):
        one = schedule(name, low=3, high=8, cycles=8)
        assert one.values(500)[-1] == 7
        [note] = one.notes(500)
        assert "ends at 7" in note


def test_a_top_that_is_never_reached_is_noted():
    [note] = schedule("RR", low=3, high=8, cycles=8).notes(640)
    assert "never reaches 8 in 640 steps" in note
    assert "needs 91 steps in a cycle, here 80" in note
    [note] = schedule("ER", low=1, high=32, cycles=1).notes(TOTAL)  # at no length
    assert "never reaches 32" in note


def test_an_odd_number_of_triangular_cycles_ends_low_and_is_noted():
    for name in ("LT", "CT", "ET-H", "ET-V", "RT-H", "RT-V"):
        odd, even = (schedule(name, low=3, high=8, cycles=n) for n in (3, 4))
        assert (odd.values(3000)[-1], even.values(3000)[-1]) == (3, 8)
        [note] = odd.notes(3000)
        assert "odd number of triangular cycles (3)" in note
        assert even.notes(3000) == []


def test_a_total_that_cycles_do_not_divide_still_ends_at_the_end_of_a_cycle():
    for total in (1000, 1001, 1007, 63_999, 5005):
        values = Cycle(3, 8, cycles=32).values(total)
        drops = sum(after < before for before, after in zip(values, values[1:], strict=False))
        assert drops == 31
        assert values[-1] == 8
        # a cycle length of int(total / N), as in the public CPT code, begins a 33rd cycle instead
        length = int(total / 32)
        k, t = divmod(total - 1, length)
        assert k == 32
        assert Cycle(3, 8, cycles=1)(t, length) < 8


def test_ten_steps_in_three_cycles_are_this_list():
    # phases 0 .3 .6 .9 | .2 .5 .8 | .1 .4 .7 of a linear growth 3 + 5p
    assert Cycle(3, 8, 3, profile="linear").values(10) == [3, 4, 6, 8, 4, 6, 7, 4, 5, 6]


@given(one=cycle_schedules, total=st.integers(64, 400))
def test_values_stay_in_range_and_form_exactly_n_monotone_cycles(one, total):
    values = one.values(total)
    assert one.low <= min(values)
    assert max(values) <= one.high
    starts = [-(-k * total // one.cycles) for k in range(one.cycles + 1)]
    assert starts[-1] == total
    for k in range(one.cycles):
        leg = values[starts[k] : starts[k + 1]]
        is_decay = one.form == "triangular" and k % 2 == 0
        assert leg == sorted(leg, reverse=is_decay)
        assert len(leg) >= 1


def test_reflection_is_stored_only_where_it_matters():
    assert Cycle(3, 8, reflect="vertical") == Cycle(3, 8)
    up, down = (Cycle(3, 8, form="triangular", reflect=r) for r in ("vertical", "horizontal"))
    assert up == down
    rex = [
        Cycle(3, 8, profile="rex", form="triangular", reflect=r) for r in ("vertical", "horizontal")
    ]
    assert rex[0] != rex[1]


def test_bad_values_are_refused_at_birth():
    for options, named in (
        ({"low": 8}, r"low \(8\)"), ({"cycles": 0}, "cycles.*0"), ({"cycles": 2.0}, "cycles.*2.0"),
        ({"cycles": True}, "cycles.*True"), ({"form": "round"}, "'round'"),
        ({"reflect": "diagonal"}, "'diagonal'"), ({"profile": None}, "profile None"),
        ({"profile": "cosin"}, "did you mean 'cosine'"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=named):
            Cycle(**{"low": 3, "high": 7, **options})


def test_more_cycles_than_steps_is_an_error():
    for schedule_type in (Cycle, Anneal, Triangle):
        with pytest.raises(ValueError, match=r"cycles \(32\).*31"):
            schedule_type(3, 8)(0, 31)
        assert schedule_type(3, 8)(0, 32) in (3, 8)


def test_bits_that_mean_float32_are_returned_as_they_are():
    values = Cycle(8, 32, cycles=1).values(1000)
    assert (values[0], values[-1]) == (8, 32)
    assert set(values) == set(range(8, 33))


def test_equal_ends_are_constant_and_need_no_note():
    assert set(Cycle(6, 6, cycles=3, form="triangular").values(10)) == {6}
    assert Cycle(6, 6, cycles=3, form="triangular").notes(10) == []


def test_anneal_is_this_list():
    # 3 + 5 (1 + cos(pi k/10)) / 2: 8 7.88 7.52 6.97 6.27 5.5 4.73 4.03 3.48 3.12
    assert Anneal(3, 8, cycles=2).values(20) == [8, 8, 8, 7, 6, 6, 5, 4, 3, 3] * 2


def test_triangle_is_this_list():
    # 3 + 5 (1 - |2p - 1|): 3 4 5 6 7 8 7 6 5 4
    assert Triangle(3, 8, cycles=2).values(20) == [3, 4, 5, 6, 7, 8, 7, 6, 5, 4] * 2


def test_every_step_of_anneal_and_triangle_equals_the_closed_form():
    for cycles in (8, 32):
        length = 64_000 // cycles
        p = (np.arange(64_000) % length) / length
        anneal = np.rint(np.round(3 + 5 * (1 + np.cos(np.pi * p)) / 2, 9))
        triangle = np.rint(np.round(3 + 5 * (1 - np.abs(2 * p - 1)), 9))
        assert Anneal(3, 8, cycles).values(64_000) == anneal.astype(int).tolist()
        assert Triangle(3, 8, cycles).values(64_000) == triangle.astype(int).tolist()


def test_a_total_that_cycles_do_not_divide():
    # phases 0 .3 .6 .9 | .2 .5 .8 | .1 .4 .7
    assert Triangle(3, 8, cycles=3).values(10) == [3, 6, 7, 4, 5, 8, 5, 4, 7, 6]
    assert Anneal(3, 8, cycles=3).values(10) == [8, 7, 5, 3, 8, 6, 3, 8, 6, 4]


def test_both_end_at_low_by_design_without_a_note():
    for one in (Anneal(3, 8, cycles=4), Triangle(3, 8, cycles=4)):
        assert one.values(4000)[-1] == 3
        assert one.notes(4000) == []


def test_cycles_too_short_for_an_end_are_noted():
    [note] = Triangle(3, 8, cycles=10).notes(10)
    assert "never reaches 8 in 10 steps" in note
    [note] = Anneal(3, 8, cycles=10).notes(10)
    assert "never reaches 3 in 10 steps" in note


def test_the_number_of_cycles_is_checked_and_32_by_default():
    for schedule_type in (Anneal, Triangle):
        assert schedule_type(low=3, high=8).cycles == 32
        with pytest.raises(ValueError, match="cycles.*-1"):
            schedule_type(3, 8, cycles=-1)


# The ten names are those of "Better Schedules for Low Precision Training" (2024); the tiers follow
# the cost table of test_preview.py.
TIERS = {
    "high": {"ER", "ET-H"},
    "medium": {"LR", "LT", "CR", "CT", "ET-V", "RT-V"},
    "low": {"RR", "RT-H"},
}


def test_there_are_ten_named_schedules_in_three_tiers():
    tiers = {tier: {i.name for i in list_schedules() if i.tier == tier} for tier in TIERS}
    assert tiers == TIERS


def test_a_name_stands_for_a_cycle():
    assert schedule("CR", low=3, high=8) == Cycle(3, 8, cycles=32)
    assert schedule("rt-v", low=4, high=6, cycles=2) == Cycle(
        4, 6, 2, profile="rex", form="triangular", reflect="vertical"
    )


def test_an_unknown_name_is_an_error():
    for name in ("CV", "anneal", "", None, 3):
        with pytest.raises(ValueError, match=repr(name)):
            schedule(name, low=3, high=8)


# Phase at which 3-8 bits first round to 4, 5, 6, 7, 8: the inverse of g at 0.1, 0.3, ..., 0.9.
FIRST_PHASES = {
    "linear": [0.10000, 0.30000, 0.50000, 0.70000, 0.90000],  # p
    "cosine": [0.20483, 0.36901, 0.50000, 0.63099, 0.79517],  # acos(1 - 2 y) / pi
    "exponential": [0.02634, 0.08917, 0.17329, 0.30099, 0.57565],  # -log(1 - y) / 4
    "rex": [0.52632, 0.81081, 0.90909, 0.95890, 0.98901],  # 1 - 0.1 (1 - y) / (0.1 + 0.9 y)
}


def test_each_bit_width_is_first_reached_at_the_published_phase():
    for name in FIRST_PHASES:
        cycle = Cycle(3, 8, profile=name)
        for bits, phase in zip(range(4, 9), FIRST_PHASES[name], strict=True):
            assert cycle.at_height(cycle.unit(1, phase - 1e-5)) == bits - 1
            assert cycle.at_height(cycle.unit(1, phase + 1e-5)) == bits


@given(name=st.sampled_from(PROFILES.names()), p=st.floats(0, 1), q=st.floats(0, 1))
def test_a_profile_starts_at_zero_never_falls_and_stays_below_one(name, p, q):
    g = PROFILES[name].growth
    assert g(0.0) == 0.0
    assert 0.0 <= g(min(p, q)) <= g(max(p, q)) + 1e-12
    assert g(p) <= 1.0 + 1e-12


def test_symmetric_profiles_say_so():
    for name in PROFILES.names():
        profile = PROFILES[name]
        points = [i / 100 for i in range(101)]
        is_symmetric = all(
            math.isclose(profile.growth(1 - p), 1 - profile.growth(p), abs_tol=1e-12)
            for p in points
        )
        assert is_symmetric == profile.is_symmetric


def test_the_exponential_profile_reaches_the_top_up_to_27_bits_apart():
    assert PROFILES["exponential"].growth(1.0) == pytest.approx(0.98168, abs=5e-6)  # 1 - exp(-4)
    near, far = Cycle(1, 28, 1, "exponential"), Cycle(1, 29, 1, "exponential")
    assert near.at_height(near.unit(1, 1.0)) == 28
    assert far.at_height(far.unit(1, 1.0)) == 28


def test_a_new_profile_brings_its_named_schedules(monkeypatch):
    square = Profile("square", "Q", lambda p: p * p, False, "low", "late")
    monkeypatch.setitem(PROFILES._entries, "square", square)
    schedule = parse_schedule("qt-v:3-8:2")
    assert schedule == Cycle(3, 8, 2, profile="square", form="triangular", reflect="vertical")
    assert str(schedule) == "QT-V:3-8:2"
