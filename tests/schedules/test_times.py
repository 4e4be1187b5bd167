"""Times: step counts and fractions of a run."""

import math

import pytest

from bitcycle.schedules import Delay, Ramp, Sequence, Stages
from bitcycle.schedules.times import check_time, to_spans, to_step


@pytest.mark.parametrize(
    ("time", "total", "step"),
    [
        (0.0, 10, 0),
        (1.0, 10, 10),
        (1, 10, 1),
        (10, 10, 10),
        (0.2, 64_000, 12_800),
        (0.1, 30, 3),  # 0.1 * 30 is 3.0000000000000004
        (0.5, 5, 2),  # a tie goes to the even step
        (0.5, 7, 4),
        (0.04, 10, 0),
        (0.96, 10, 10),
    ],
)
def test_a_fraction_is_the_nearest_step_with_ties_to_even(time, total, step):
    assert to_step(time, total, "start") == step


@pytest.mark.parametrize("time", [-1, -0.1, 1.1, math.nan, math.inf, True, None, "0.5"])
def test_a_time_is_a_step_count_or_a_fraction(time):
    with pytest.raises(ValueError, match="start must be a step count"):
        check_time(time, "start")


@pytest.mark.parametrize(
    "schedule", [Ramp(3, 8, until=11), Delay(8, start=11), Stages([(3, 11), (8, 1.0)])]
)
def test_a_step_count_beyond_the_run_is_an_error(schedule):
    with pytest.raises(ValueError, match="11 lies beyond the 10 steps"):
        schedule(0, 10)
    assert schedule(0, 11) == schedule.low


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ([], "at least one part"),
        ([0.5], "must be 1.0, the end of the run, got 0.5$"),
        ([0.5, 1], r"must be 1.0, the end of the run, got 1 \(an int is a step count\)"),
        ([0.5, 0.5, 1.0], "must grow from above 0, got 0.5 after 0.5"),
        ([20, 10, 1.0], "got 10 after 20"),
        ([1.0, 1.0], "got 1.0 after 1.0"),
        ([0, 1.0], "got 0 after 0"),
        ([0.0, 1.0], "got 0.0 after 0"),
        ([True, 1.0], "must be a step count"),
    ],
)
@pytest.mark.parametrize("schedule_type", [Stages, Sequence])
def test_bad_end_points_are_refused_at_birth(schedule_type, ends, message):
    with pytest.raises(ValueError, match=message):
        schedule_type([(8, end) for end in ends])


def test_mixed_end_points_that_cross_are_an_error_of_that_run_only():
    stages = Stages([(3, 50), (4, 0.5), (8, 1.0)])
    with pytest.raises(ValueError, match=r"is step 25, before the previous one \(step 50\)"):
        stages(0, 50)
    assert stages.values(200) == [3] * 50 + [4] * 50 + [8] * 100


def test_spans_cover_the_run_and_may_be_empty():
    assert to_spans((0.2, 0.21, 1.0), 10, "x") == [(0, 2), (2, 2), (2, 10)]
