"""Unit profiles g(phase)."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitcycle.schedules import PROFILES, Cycle, Profile, parse_schedule

# Phase at which 3-8 bits first round to 4, 5, 6, 7, 8: the inverse of g at 0.1, 0.3, ..., 0.9.
FIRST_PHASES = {
    "linear": [0.10000, 0.30000, 0.50000, 0.70000, 0.90000],  # p
    "cosine": [0.20483, 0.36901, 0.50000, 0.63099, 0.79517],  # acos(1 - 2 y) / pi
    "exponential": [0.02634, 0.08917, 0.17329, 0.30099, 0.57565],  # -log(1 - y) / 4
    "rex": [0.52632, 0.81081, 0.90909, 0.95890, 0.98901],  # 1 - 0.1 (1 - y) / (0.1 + 0.9 y)
}


@pytest.mark.parametrize("name", FIRST_PHASES)
def test_each_bit_width_is_first_reached_at_the_published_phase(name):
    cycle = Cycle(3, 8, profile=name)
    for bits, phase in zip(range(4, 9), FIRST_PHASES[name], strict=True):
        assert cycle.bits_in(1, phase - 1e-5) == bits - 1
        assert cycle.bits_in(1, phase + 1e-5) == bits


def test_linear_ties_stay_at_the_even_bits():
    cycle = Cycle(3, 8, profile="linear")
    # 3.5 4.5 5.5 6.5 7.5, half to even
    assert [cycle.bits_in(1, p) for p in (0.1, 0.3, 0.5, 0.7, 0.9)] == [4, 4, 6, 6, 8]


@pytest.mark.parametrize("name", PROFILES.names())
@settings(deadline=None)
@given(p=st.floats(0, 1), q=st.floats(0, 1))
def test_a_profile_starts_at_zero_never_falls_and_stays_below_one(name, p, q):
    g = PROFILES[name].growth
    assert g(0.0) == 0.0
    assert 0.0 <= g(min(p, q)) <= g(max(p, q)) + 1e-12
    assert g(p) <= 1.0 + 1e-12


@pytest.mark.parametrize("name", PROFILES.names())
def test_symmetric_profiles_say_so(name):
    profile = PROFILES[name]
    points = [i / 100 for i in range(101)]
    is_symmetric = all(
        math.isclose(profile.growth(1 - p), 1 - profile.growth(p), abs_tol=1e-12) for p in points
    )
    assert is_symmetric == profile.is_symmetric


def test_the_exponential_profile_reaches_the_top_up_to_27_bits_apart():
    assert PROFILES["exponential"].growth(1.0) == pytest.approx(0.98168, abs=5e-6)  # 1 - exp(-4)
    near, far = Cycle(1, 28, 1, "exponential"), Cycle(1, 29, 1, "exponential")
    assert near.bits_in(1, 1.0) == 28
    assert far.bits_in(1, 1.0) == 28


def test_a_new_profile_brings_its_named_schedules(monkeypatch):
    square = Profile("square", "Q", lambda p: p * p, False, "low", "late")
    monkeypatch.setitem(PROFILES._entries, "square", square)
    schedule = parse_schedule("qt-v:3-8:2")
    assert schedule == Cycle(3, 8, 2, profile="square", form="triangular", reflect="vertical")
    assert str(schedule) == "QT-V:3-8:2"


def test_an_unknown_profile_names_the_nearest():
    with pytest.raises(ValueError, match="unknown profile 'cosin'.*did you mean 'cosine'"):
        Cycle(3, 8, profile="cosin")
