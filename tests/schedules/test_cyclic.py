"""Cosine annealing and the triangle of CPT's Table 6."""

import numpy as np
import pytest

from bitcycle.schedules import Anneal, Triangle


def test_anneal_is_this_list():
    # 3 + 5 (1 + cos(pi k/10)) / 2: 8 7.88 7.52 6.97 6.27 5.5 4.73 4.03 3.48 3.12
    assert Anneal(3, 8, cycles=2).values(20) == [8, 8, 8, 7, 6, 6, 5, 4, 3, 3] * 2


def test_triangle_is_this_list():
    # 3 + 5 (1 - |2p - 1|): 3 4 5 6 7 8 7 6 5 4
    assert Triangle(3, 8, cycles=2).values(20) == [3, 4, 5, 6, 7, 8, 7, 6, 5, 4] * 2


@pytest.mark.parametrize("cycles", [8, 32])
def test_every_step_of_a_long_run_equals_the_closed_form(cycles):
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
    for schedule in (Anneal(3, 8, cycles=4), Triangle(3, 8, cycles=4)):
        assert schedule.values(4000)[-1] == 3
        assert schedule.notes(4000) == []


def test_cycles_too_short_for_an_end_are_noted():
    [note] = Triangle(3, 8, cycles=10).notes(10)
    assert "never gets to 8 bits in 10 steps" in note
    [note] = Anneal(3, 8, cycles=10).notes(10)
    assert "never gets to 3 bits in 10 steps" in note


@pytest.mark.parametrize("schedule_type", [Anneal, Triangle])
def test_the_number_of_cycles_is_checked_and_32_by_default(schedule_type):
    assert schedule_type(low=3, high=8).cycles == 32
    with pytest.raises(ValueError, match="cycles must be"):
        schedule_type(3, 8, cycles=-1)
    with pytest.raises(ValueError, match=r"cycles \(32\) must be <= total_steps \(8\)"):
        schedule_type(3, 8).values(8)
