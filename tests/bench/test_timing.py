"""Interleaved times."""

import time

from bitcycle.bench.timing import Timing, time_interleaved


def test_functions_are_called_in_turn_after_their_warm_up():
    calls = []
    timings = time_interleaved(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=3
    )
    assert "".join(calls) == "aabb" + "ababab"
    assert [len(timing.seconds) for timing in timings.values()] == [3, 3]
    assert not any(timing.is_once for timing in timings.values())


def test_a_first_call_above_the_budget_is_the_only_one():
    calls = []

    def slow():
        calls.append("slow")
        time.sleep(0.02)

    timings = time_interleaved({"fast": lambda: None, "slow": slow}, repeats=4, budget=0.01)
    assert calls == ["slow"]
    assert timings["slow"].is_once
    assert len(timings["slow"].seconds) == 1
    assert list(timings) == ["fast", "slow"]
    assert len(timings["fast"].seconds) == 4


def test_a_slow_first_call_alone_does_not_condemn_a_function():
    calls = []

    def compiles_first():
        calls.append(1)
        time.sleep(0.5 if len(calls) == 1 else 0.0)

    timing = time_interleaved({"f": compiles_first}, repeats=3, budget=1.0)["f"]
    assert not timing.is_once
    assert len(calls) == 5


def test_a_function_gets_the_repeats_that_fit_its_budget():
    timing = time_interleaved({"f": lambda: time.sleep(0.05)}, repeats=100, budget=0.5)["f"]
    assert 3 <= len(timing.seconds) <= 10 or timing.is_once  # a stalled machine may allow no more


def test_every_call_ticks():
    ticks = []
    time_interleaved(
        {"a": lambda: None, "b": lambda: None}, repeats=2, tick=lambda: ticks.append(1)
    )
    assert len(ticks) == 2 * (2 + 2)


def test_the_fastest_and_the_lower_quartile_of_eight():
    timing = Timing((8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0))
    assert (timing.fastest, timing.lower_quartile) == (1.0, 3.0)
