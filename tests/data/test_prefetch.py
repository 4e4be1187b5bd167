"""Prefetching keeps the order, raises errors at their turn and stops when its consumer does."""

from __future__ import annotations

import threading
import time

import pytest

from bitcycle.data.batches import in_order


@pytest.mark.parametrize("depth", [0, 1, 10])
def test_results_come_in_the_order_of_the_jobs(depth):
    def job(number: int) -> int:
        time.sleep(0.003 * (number % 3 == 0))
        return number

    jobs = ((lambda n=n: job(n)) for n in range(12))
    assert list(in_order(jobs, depth=depth)) == list(range(12))


@pytest.mark.parametrize("depth", [0, 2])
def test_an_error_is_raised_at_its_turn(depth):
    def fail() -> int:
        raise ValueError("third")

    results = in_order([lambda: 1, lambda: 2, fail, lambda: 4], depth=depth)
    assert [next(results), next(results)] == [1, 2]
    with pytest.raises(ValueError, match="third"):
        next(results)


def test_jobs_run_ahead_but_not_further_than_the_depth():
    started: list[int] = []

    def jobs():
        for number in range(100):
            yield lambda n=number: started.append(n)

    results = in_order(jobs(), depth=2)
    next(results)
    time.sleep(0.05)
    assert sorted(started) == [0, 1, 2]
    results.close()


def test_a_consumer_that_stops_early_leaves_no_threads():
    before = threading.active_count()
    results = in_order(((lambda n=n: n) for n in range(1000)), depth=4)
    assert next(results) == 0
    results.close()
    assert threading.active_count() == before
