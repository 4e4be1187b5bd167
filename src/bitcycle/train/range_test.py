"""How long, on what and against which gain a run's precision range test goes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from bitcycle.model_precision import quantized_layers
from bitcycle.precision import ROLES, Precision
from bitcycle.range_test import (
    RangeCurve,
    RangeProgress,
    RangeTest,
    RangeTestError,
    check_lengths,
    check_threshold,
    run_range_test,
)
from bitcycle.scheduler import INHERIT, resolve_schedules
from bitcycle.schedules import Bits, Cycle, parse_schedule
from bitcycle.schedules.base import order
from bitcycle.schedules.cycle import DEFAULT_CYCLES, Cyclic
from bitcycle.tasks import Task
from bitcycle.train.checkpoint import Checkpoints
from bitcycle.train.config import RunConfig, ScheduleText
from bitcycle.train.evaluate import reduce_sums
from bitcycle.train.loop import save, steps_of_run, stop_signal, update
from bitcycle.train.progress import Reporter
from bitcycle.train.run_directory import RunDirectory, measured
from bitcycle.train.session import FoundLow, Session, build_session, kept_settings
from bitcycle.train.signals import Interrupted, StopWish

MIN_STEPS = 10  # steps at a precision, below which a gain says nothing
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
    if given.steps_per_precision is None and steps < MIN_STEPS:
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


def check_range_test(session: Session) -> None:
    """Raise before anything is written if the run needs a range test that cannot be judged."""
    high = session.config.precision.auto_high
    if high is not None:
        plan_range_test(session.config, session.task, session.total_steps, high=high)


def find_low(session: Session, directory: RunDirectory, reporter: Reporter, wish: StopWish) -> None:
    """Find what `auto` stands for before step 0, schedule the bits with it and keep it.

    The test's steps are not training: all is put back, only their cost stays. A checkpoint of
    step 0 holds the outcome; a run that is stopped before begins the test anew.
    """
    began = time.monotonic()
    high = session.config.precision.auto_high
    assert high is not None
    plan = plan_range_test(session.config, session.task, session.total_steps, high=high)
    reporter.say(f"range test: {plan}")

    def stop() -> None:
        if signum := stop_signal(session, wish):
            raise Interrupted(
                signum, f"stopped in the range test, which {directory.path} begins anew on resume"
            )

    tested, bitops = run_on_session(
        session, plan, progress=lambda moment: reporter.say(str(moment)), after_step=stop,
        stop_early=True,
    )  # fmt: skip
    if isinstance(tested, RangeTestError):
        raise tested
    found = FoundLow(test=tested, bitops=bitops)
    session.take_low(found)
    session.seconds += time.monotonic() - began
    assert session.bits is not None
    text = session.config.precision.given(auto=found.test.low)["forward"]
    for line in str(found.test.curve).splitlines():
        reporter.say(f"range test  {line}")
    reporter.say(f"range test: the lower end is {found.test.low} bits, forward {text}")
    if session.is_main:
        directory.add_metrics(
            {
                "step": 0,
                "kind": "range_test",
                "low": found.test.low,
                "high": found.test.high,
                "forward": text,
                "gains": found.test.curve.to_dict()["gains"],
                "threshold": found.test.threshold,
                "bitops": session.bitops,
            }
        )
    keep = session.config.checkpoint.keep
    save(session, directory, Checkpoints(directory.checkpoints, keep=keep))


def run_on_session(
    session: Session,
    plan: RangePlan,
    *,
    progress: Callable[[RangeProgress], object] | None = None,
    after_step: Callable[[], object] = lambda: None,
    find_upper: bool = False,
    stop_early: bool = False,
) -> tuple[RangeTest | RangeTestError, dict[str, int]]:
    """Run the test on the session's first batches; the session is as it was afterwards.

    With what it found, or the error that says that nothing passed, come the BitOPs it took.
    """
    task = session.task
    is_loss = plan.metric == "loss"
    meter_before = session.meter.state_dict()
    session.wrapped.train()
    with closing(steps_of_run(session, is_endless=True)) as steps:

        def train_step() -> float:
            after_step()
            session.window = {}
            update(session, next(steps), checks_loss=False)
            sums = reduce_sums(session.window, session.device, session.world_size)
            metrics = task.metrics(sums)
            if not math.isfinite(metrics["loss"]):
                return math.nan
            return -metrics["loss"] if is_loss else metrics[plan.metric]

        try:
            tested: RangeTest | RangeTestError = run_range_test(
                session.model,
                train_step,
                lambda bits: _precision_at(session, bits),
                restore=[session.optimizer, session.lr, task],
                bit_range=(plan.low, plan.high),
                steps_per_precision=plan.steps_per_precision,
                window=plan.window,
                threshold=plan.threshold,
                backward=_error_bits(session, plan.low),
                reset=plan.reset,
                find_upper=find_upper,
                stop_early=stop_early,
                name="-loss" if is_loss else plan.metric,
                progress=progress,
            )
        except RangeTestError as error:
            tested = error
        finally:
            bitops = session.meter.by_matmul()
            session.window = {}
            session.meter.load_state_dict(meter_before)
    return tested, bitops


def _precision_at(session: Session, bits: int) -> Precision | dict[str, Precision]:
    """The run's bits in its first step, had the forward schedule been these bits."""
    given: dict[str, Any] = dict(session.config.precision.given(auto=bits))
    given["forward"] = _fixed(given.get("forward"), bits)
    keywords = ("forward", "backward", *ROLES)
    layers = quantized_layers(session.model)
    total = session.total_steps
    resolved = resolve_schedules(layers, {key: given.get(key, INHERIT) for key in keywords}, total)
    by_layer = {
        entry.name: Precision(**{r: s(0, total) for r, s in zip(ROLES, schedules, strict=True)})
        for (entry, _), schedules in zip(layers, resolved, strict=True)
    }
    distinct = set(by_layer.values())
    return distinct.pop() if len(distinct) == 1 else by_layer


def _fixed(forward: ScheduleText, bits: int) -> ScheduleText:
    """The bits for every layer; where patterns say float32, that."""
    if not isinstance(forward, dict):
        return bits
    floats = {pattern: parse_schedule(text).low is None for pattern, text in forward.items()}
    return {pattern: None if is_float else bits for pattern, is_float in floats.items()}


def _error_bits(session: Session, bits: int) -> int | None:
    """The most bits that errors have in the test."""
    precision = _precision_at(session, bits)
    rows = [precision] if isinstance(precision, Precision) else list(precision.values())
    errors = [row.error for row in rows]
    return None if None in errors else max(e for e in errors if e is not None)


STEPS_WITHOUT_CYCLES = 100  # steps at a precision, where no cycle of a run limits them
HIGH = 8  # where nothing else says what the static baseline has
SHORT_RUN = 3200  # steps below which 32 cycles are too many


@dataclass(frozen=True, kw_only=True)
class RangeReport:
    """What was tested and what came of it; `test` is None when nothing passed."""

    config: RunConfig
    plan: RangePlan
    find_upper: bool
    stop_early: bool
    curve: RangeCurve
    bitops: int
    made: dict[str, Any]  # machine, threads, and seconds from loading the data on
    test: RangeTest | None = None
    forward: str | None = None  # the schedule to train with

    def to_dict(self) -> dict[str, Any]:
        """JSON types only."""
        return {
            "name": self.config.name,
            "seed": self.config.seed,
            "model": self.config.model.name,
            "data": self.config.data.name,
            "backward": self.config.precision.backward,
            "plan": asdict(self.plan),
            "find_upper": self.find_upper,
            "stop_early": self.stop_early,
            "low": None if self.test is None else self.test.low,
            "high": None if self.test is None else self.test.high,
            "forward": self.forward,
            "bitops": self.bitops,
            "curve": self.curve.to_dict(),
            **self.made,
        }


def range_test_of(
    config: RunConfig,
    *,
    high: int | None = None,
    find_upper: bool = False,
    stop_early: bool = False,
    say: Callable[[str], object] = lambda line: None,
) -> tuple[RangeReport, RangeTestError | None]:
    """Test the run's model on its data at its learning rate; writes nothing.

    high: the most bits to try; by default the top of the forward schedule, 8 if that is float32.
    With the report comes the error when nothing passed.
    """
    precision = config.precision
    if precision.is_float:
        raise ValueError(
            f"{config.name} trains in float32, which leaves no bits to test; give "
            "--precision.forward 8 --precision.backward 8, or another recipe"
        )
    high = high or precision.auto_high or _top(config) or HIGH
    start = config.range_test.low
    filled: Any = precision.given(auto=start).get("forward", "fp32")
    runnable = replace(config, precision=replace(precision, forward=filled))
    began = time.monotonic()
    with kept_settings():
        session = build_session(runnable)
        plan = plan_range_test(
            runnable, session.task, session.total_steps, high=high, fewest=STEPS_WITHOUT_CYCLES
        )
        say(f"{config.model.name} on {config.data.name}, seed {config.seed}: {plan}")

        def progress(moment: RangeProgress) -> None:
            say(str(moment))

        tested, bitops = run_on_session(
            session, plan, progress=progress, find_upper=find_upper, stop_early=stop_early
        )
        made = measured(time.monotonic() - began, threads=torch.get_num_threads())
    report = RangeReport(
        config=config, plan=plan, find_upper=find_upper, stop_early=stop_early,
        curve=tested.curve, bitops=sum(bitops.values()), made=made,
    )  # fmt: skip
    if isinstance(tested, RangeTestError):
        return report, tested
    forward = forward_text(config, tested, session.total_steps)
    return replace(report, test=tested, forward=forward), None


def _top(config: RunConfig) -> Bits:
    forward = config.precision.forward
    texts = list(forward.values()) if isinstance(forward, dict) else [forward]
    tops = [parse_schedule(text).high for text in texts if parse_schedule(text).low is not None]
    return max(tops, key=order, default=None)


def forward_text(config: RunConfig, test: RangeTest, total_steps: int) -> str:
    """The run's own cyclic schedule between the bounds, or CPT's where it has none."""
    if test.low == test.high:
        return str(test.low)
    forward = config.precision.given(auto=test.low)["forward"]
    if not isinstance(forward, dict):
        schedule = parse_schedule(forward)
        if isinstance(schedule, Cyclic):
            bounds = {"low": test.low, "high": test.high}
            return str(replace(schedule, **bounds))  # type: ignore[type-var]
    cycles = 32 if total_steps >= SHORT_RUN else min(8, total_steps)
    return str(Cycle(test.low, test.high, cycles=cycles))
