"""The gradient-noise switch: hand-made norms and the steps at which they must switch."""

import math

import pytest

from bitcycle.schedules import NoiseSwitch


def turns(rule, measured, total_steps=1000):
    """measured: step -> (gradient norm, noise norm)."""
    state = rule.start()
    for step, (gradient, noise) in measured.items():
        told = {"gradient_norm": gradient, "noise_norm": noise}
        state = rule.advance(state, step, told, total_steps)
    return state["turns"]


def test_it_switches_below_the_square_root_of_three():
    assert turns(NoiseSwitch((4, 8)), {0: (1.74, 1.0)}) == []
    assert turns(NoiseSwitch((4, 8)), {0: (1.73, 1.0)}) == [1]
    assert NoiseSwitch((4, 8)).factor == math.sqrt(3)


def test_running_means_decide_and_not_a_single_measurement():
    rule = NoiseSwitch((4, 8), every=1)
    # 2; .9 * 2 + .1 * 0 = 1.8; 1.62: below 1.732
    assert turns(rule, {0: (2.0, 1.0), 1: (0.0, 1.0)}) == []
    assert turns(rule, {0: (2.0, 1.0), 1: (0.0, 1.0), 2: (0.0, 1.0)}) == [3]
    # the noise is a running mean too: 1, 1.1, so sqrt(3) x 1.1 = 1.905
    assert turns(rule, {0: (2.0, 1.0), 1: (1.0, 2.0)}) == [2]


def test_the_means_begin_anew_with_the_new_bits():
    rule = NoiseSwitch((4, 6, 8), every=1)
    assert turns(rule, {0: (1.0, 1.0), 1: (2.0, 1.0), 2: (2.0, 1.0)}) == [1]
    assert turns(rule, {0: (1.0, 1.0), 1: (1.0, 1.0)}) == [1, 2]


def test_it_looks_only_every_few_steps_and_no_more_at_the_top():
    rule = NoiseSwitch((4, 8), every=10)
    start = rule.start()
    assert [step for step in range(25) if rule.is_due(start, step)] == [0, 10, 20]
    assert turns(rule, {1: (0.0, 1.0), 9: (0.0, 1.0)}) == []
    assert not rule.is_due({**start, "turns": [1]}, 10)
    assert turns(rule, {0: (0.0, 1.0), 10: (0.0, 1.0)}) == [1]


def test_no_noise_is_no_reason():
    assert turns(NoiseSwitch((4, 8)), {0: (0.0, 0.0)}) == []


def test_the_last_level_may_be_float32():
    rule = NoiseSwitch((4, None))
    assert (rule.low, rule.high, rule.bit_widths(10)) == (4, None, {4, None})
    assert str(rule) == "noise:4,fp32:every=50"


@pytest.mark.parametrize(("total", "num_notes"), [(50, 1), (51, 1), (52, 0)])
def test_a_run_in_which_it_cannot_switch_often_enough_is_noted(total, num_notes):
    # looks after steps 0 and 50: two rises need a step 51 to show in
    assert len(NoiseSwitch((4, 6, 8), every=50).notes(total)) == num_notes
