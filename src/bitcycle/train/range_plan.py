"""How long, on what and against which gain a run's precision range test goes."""

from __future__ import annotations

from dataclasses import dataclass

from bitcycle.range_test import check_lengths, check_threshold
from bitcycle.schedules import parse_schedule
from bitcycle.schedules.cyclic import DEFAULT_CYCLES
from bitcycle.tasks import Task
from bitcycle.train.config import RunConfig

FEWEST = 10  # steps at a precision, below which a gain says nothing
WINDOWS = 4  # the mean is taken over this share of a precision's steps


@dataclass(frozen=True, kw_only=True)
class RangePlan:
    """The settings of one test, all of them numbers."""

    low: int
    high: int
    steps_per_precision: int
    window: int
    threshold: float
    metric: str  # of the task's metrics; a loss counts negative
    reset: bool

    def __str__(self) -> str:
        name = "-loss" if self.metric == "loss" else self.metric
        return (
            f"{self.low} to {self.high} bits, {self.steps_per_precision} steps each; passes with a "
            f"gain in {name} above {self.threshold:g} from the first to the last "
            f"{self.window} steps"
        )


def plan_range_test(
    config: RunConfig, task: Task, total_steps: int, *, high: int, fewest: int | None = None
) -> RangePlan:
    """The plan for a run: what its configuration leaves open follows from the task and the run.

    By default all precisions together take one cycle of the forward schedule (1/32 of the run if
    it has none), unless that is less than `fewest` steps each; without `fewest` that is an error.
    """
    given = config.range_test
    if given.low > high:
        raise ValueError(f"range_test.low ({given.low}) must be <= {high}, the most bits to try")
    cycle, number = _cycle_steps(config, total_steps), high - given.low + 1
    steps = given.steps_per_precision or max(cycle // number, fewest or 0)
    if given.steps_per_precision is None and steps < FEWEST:
        raise ValueError(
            f"a cycle of the forward schedule ({config.precision.forward}) has {cycle} steps, "
            f"{cycle // number} for each of {number} precisions: too few to tell whether the "
            "model learns. Set range_test.steps_per_precision, such as 50 (the test then takes "
            "longer than a cycle), or use fewer cycles"
        )
    window = given.window or max(1, steps // WINDOWS)
    check_lengths(steps, window)
    return RangePlan(
        low=given.low,
        high=high,
        steps_per_precision=steps,
        window=window,
        threshold=_threshold(given.threshold, task),
        metric=task.metric if task.higher_is_better else "loss",
        reset=given.reset,
    )


def _cycle_steps(config: RunConfig, total_steps: int) -> int:
    forward = config.precision.given(auto=config.range_test.low)["forward"]
    cycles = 0 if isinstance(forward, dict) else parse_schedule(forward).count_cycles(total_steps)
    return total_steps // (cycles or DEFAULT_CYCLES)


def _threshold(threshold: float | None, task: Task) -> float:
    if threshold is not None:
        return check_threshold(None, threshold)
    chance = task.chance
    if chance is None:
        measured = f"{task.metric} in its unit" if task.higher_is_better else "-loss, in nats"
        raise ValueError(
            f"the range test of this task measures {measured}, for which there is no blind guess "
            "to derive a threshold from: set range_test.threshold, such as 0.5"
        )
    if 3 * chance >= 100:  # from chance, no accuracy of up to 100 % gains twice as much again
        return (100 - chance) / 2
    return check_threshold(chance, None)
