"""Critical learning periods: what is low when, and the learning rate at that time."""

import pytest

from bitcycle.schedules import parse_schedule
from bitcycle_lab.recipes import recipe, with_bits
from bitcycle_lab.study.critical_periods import deficit_first, sliding_window
from bitcycle_lab.train.optimizers import lr_at


def bits_of(config):
    schedule = parse_schedule(config.precision.forward)
    return [schedule(step, config.steps) for step in range(config.steps)]


def rates_of(config):
    return [
        lr_at(config.lr, config.optimizer.lr, step, config.steps) for step in range(config.steps)
    ]


def test_a_deficit_comes_first_at_a_held_rate_and_the_whole_normal_run_after_it():
    normal = recipe("digits-static-8-8")
    config = deficit_first(normal, low=2, deficit=60)
    assert bits_of(config) == [2] * 60 + [8] * 240
    assert deficit_first(normal, low=2, deficit=0) == normal
    assert rates_of(config) == [0.1] * 60 + rates_of(normal)


def test_a_cosine_decays_over_deficit_and_normal_steps():
    config = deficit_first(with_bits("arxiv-gcn", "static 8/8"), low=3, deficit=100)
    rates = rates_of(config)
    assert len(rates) == 600
    assert all(a > b for a, b in zip(rates, rates[1:], strict=False))


@pytest.mark.parametrize("start", [0, 120, 240])
def test_a_window_is_low_and_the_rest_is_not(start):
    config = sliding_window(recipe("digits-static-8-8"), low=2, start=start, length=60)
    assert bits_of(config) == [8] * start + [2] * 60 + [8] * (240 - start)


def test_a_window_meets_the_rate_of_its_time():
    base = recipe("digits-static-8-8")
    late = sliding_window(base, low=2, start=240, length=60)
    assert rates_of(late) == [0.1] * 150 + [0.1 * 0.1] * 75 + [0.1 * 0.1**2] * 75


def test_a_window_that_ends_after_the_run_is_an_error():
    with pytest.raises(ValueError, match="step 300"):
        sliding_window(recipe("digits-static-8-8"), low=2, start=250, length=60)


def test_a_policy_that_cannot_be_moved_is_an_error():
    with pytest.raises(ValueError, match="'warm_restarts'"):
        deficit_first(recipe("digits-clr-8-8"), low=2, deficit=60)
