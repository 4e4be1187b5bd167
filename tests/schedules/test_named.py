"""The ten names, and the list of all schedules."""

import pytest

from bitcycle.schedules import Cycle, list_schedules, parse_schedule, schedule

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


@pytest.mark.parametrize("name", ["CV", "anneal", "", None, 3])
def test_an_unknown_name_lists_the_ten(name):
    with pytest.raises(ValueError, match="unknown named schedule .*CR, CT, ER, ET-H"):
        schedule(name, low=3, high=8)


def test_every_listed_example_parses_and_has_one_line():
    infos = list_schedules()
    assert {"static", "fp32", "anneal", "triangle", "ramp", "stages", "delay", "seq"} <= {
        info.name for info in infos
    }
    for info in infos:
        parse_schedule(info.form)
        assert info.summary
        assert "\n" not in info.summary
