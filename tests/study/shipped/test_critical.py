"""Critical learning periods: what is low when, and the learning rate at that time."""

import pytest

from bitcycle.recipes import recipe
from bitcycle.schedules import parse_schedule
from bitcycle.study.base import STUDIES
from bitcycle.study.shipped.critical import FULL, SMALL, deficit_first, sliding_window
from bitcycle.train.optimizers import lr_at


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
    config = deficit_first(recipe("arxiv-gcn-static-8-8"), low=3, deficit=100)
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


def test_both_protocols_train_as_many_normal_steps():
    for name in ("critical-periods-small", "critical-periods"):
        for method in STUDIES[name]().methods:
            if method.at is not None and method.config.steps < 1000:
                normal = {"digits": 240, "cora": 200, "ogbn-arxiv": 500}[method.config.data.name]
                assert bits_of(method.config).count(8) == normal


@pytest.mark.parametrize(
    ("name", "settings"), [("critical-periods", FULL), ("critical-periods-small", SMALL)]
)
def test_what_is_varied_is_on_the_methods(name, settings):
    study = STUDIES[name]()
    assert study.kind == "critical-periods"
    varied = [[m.at for m in study.of(group)] for group in study.groups]
    expected = []
    for periods in settings:
        expected += [[0, *periods.deficits], [None, *periods.starts]]
    assert varied == expected
