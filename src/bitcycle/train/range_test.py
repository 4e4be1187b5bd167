"""The precision range test of a run: the fewest bits at which it learns nearly as fast as at most.

`find_lower_bound` replaces `auto` in a run's forward schedule before step 0;
`find_precision_range` is `bitcycle range-test`, which writes nothing. Both take their settings from
`make_settings` and train with `run_on_session`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch

from bitcycle.cost import training_cost
from bitcycle.data import Batch
from bitcycle.formats.catalogue import Format
from bitcycle.model_precision import quantized_layers
from bitcycle.precision import ROLES, Precision
from bitcycle.range_curves import RangeCurve, RelativeCurve
from bitcycle.range_test import (
    WINDOWS,
    RangeTest,
    RangeTestError,
    check_lengths,
    check_threshold,
    run_range_test,
    run_relative_test,
)
from bitcycle.scheduler import INHERIT, resolve_schedules
from bitcycle.schedules import Bits, Cycle, parse_schedule
from bitcycle.schedules.base import order
from bitcycle.schedules.cycle import DEFAULT_CYCLES, Cyclic
from bitcycle.tasks import Task
from bitcycle.train.checkpoint import Checkpoints
from bitcycle.train.config import RunConfig, ScheduleText
from bitcycle.train.distributed import reduce_sums
from bitcycle.train.loop import optimizer_step, remaining_steps, save_checkpoint, stop_signal
from bitcycle.train.progress import Reporter
from bitcycle.train.run_directory import RunDirectory, measurement_info
from bitcycle.train.session import RangeTestOutcome, Session, build_session, preserve_torch_settings
from bitcycle.train.signals import Interrupted, StopRequest

HIGH = 8  # highest precision to try if the forward schedule is float32
SHORT_RUN = 3200  # steps below which 32 cycles are too many
# relative criterion
RUN_SHARE = 0.02  # of the run's steps, for the whole test
FEWEST_STEPS, MOST_STEPS = 20, 100  # per precision, by default
TESTED_AGAIN = 3  # precisions per further repeat: the most bits, the bound, the bits below it
# the paper's criterion
MIN_STEPS = 10  # per precision; a gain over fewer steps is noise
STEPS_WITHOUT_CYCLES = 100  # per precision, at least, outside of a run


@dataclass(frozen=True, kw_only=True)
class RangeTestSettings:
    """The settings of one range test, without defaults.

    threshold: of the paper's criterion; None with the relative one, which uses share and repeats.
    """

    criterion: Literal["relative", "paper"]
    low: int
    high: int
    steps_per_precision: int
    window: int
    share: float
    repeats: int
    threshold: float | None
    metric: str  # of the task's metrics; with the paper's criterion a loss counts negative
    reset: bool

    def __str__(self) -> str:
        steps = f"{self.low} to {self.high} bits, {self.steps_per_precision} steps each;"
        if self.criterion == "relative":
            return f"{steps} passes with {self.share:g} of the drop in {self.metric} at {self.high}"
        name = "-loss" if self.metric == "loss" else self.metric
        return (
            f"{steps} passes with a gain in {name} above {self.threshold:g} "
            f"from the first to the last {self.window} steps"
        )


def make_settings(
    config: RunConfig, task: Task, total_steps: int, *, high: int, fewest: int | None = None
) -> RangeTestSettings:
    """The settings for a run: its `range_test` configuration, defaults from the task and the run.

    By the relative criterion the default is the number of steps at which the whole test takes 2 %
    of the run, between 20 and 100. By the paper's criterion the precisions share the steps of one
    cycle of the forward schedule, or 1/32 of the run if it has no cycles, with at least `fewest`
    steps each; without `fewest`, too few steps are an error.
    """
    asked = config.range_test
    assert asked.criterion is not None  # resolved by the configuration
    if asked.low > high:
        raise ValueError(
            f"range_test.low ({asked.low}) must be <= {high}, the most bits to try; change it, or "
            "--low and --high of bitcycle range-test"
        )
    is_relative, number = asked.criterion == "relative", high - asked.low + 1
    if asked.steps_per_precision is not None:
        steps = asked.steps_per_precision
    elif is_relative:
        runs = number + TESTED_AGAIN * (asked.repeats - 1)
        steps = min(max(int(RUN_SHARE * total_steps / runs), FEWEST_STEPS), MOST_STEPS)
    else:
        steps = _steps_of_cycle(config, total_steps, number, fewest)
    fewest_per_mean = 2 if is_relative else 1
    window = asked.window or max(fewest_per_mean, steps // WINDOWS)
    if window < fewest_per_mean:
        raise ValueError(
            f"range_test.window ({window}) must be at least 2 steps for the relative criterion, "
            "whose noise is measured within a window; leave it out for a quarter of the steps"
        )
    check_lengths(steps, window)
    return RangeTestSettings(
        criterion=asked.criterion,
        low=asked.low,
        high=high,
        steps_per_precision=steps,
        window=window,
        share=asked.share,
        repeats=asked.repeats,
        threshold=None if is_relative else _threshold(asked.threshold, task),
        metric=task.metric if task.higher_is_better and not is_relative else "loss",
        reset=asked.reset or is_relative,
    )


def _steps_of_cycle(config: RunConfig, total_steps: int, number: int, fewest: int | None) -> int:
    cycle = _cycle_steps(config, total_steps)
    steps = max(cycle // number, fewest or 0)
    if steps < MIN_STEPS:
        raise ValueError(
            f"a cycle of the forward schedule ({config.precision.forward}) has {cycle} steps, "
            f"{cycle // number} for each of {number} precisions: too few to tell whether the "
            "model learns. Set range_test.steps_per_precision, such as 50 (the test then takes "
            "longer than a cycle), or use fewer cycles"
        )
    return steps


def _cycle_steps(config: RunConfig, total_steps: int) -> int:
    forward = config.precision.schedule_texts(auto=config.range_test.low)["forward"]
    cycles = 0 if isinstance(forward, dict) else parse_schedule(forward).count_cycles(total_steps)
    return total_steps // (cycles or DEFAULT_CYCLES)


def _threshold(threshold: float | None, task: Task) -> float:
    if threshold is not None:
        return check_threshold(None, threshold)
    chance = task.chance
    if chance is None:
        unit = f"{task.metric} in its unit" if task.higher_is_better else "-loss, in nats"
        raise ValueError(
            f"the range test of this task measures {unit}, which has no chance level to derive "
            "a threshold from: set range_test.threshold, such as 0.5, or range_test.criterion "
            "relative"
        )
    if 3 * chance >= 100:  # an accuracy cannot gain twice the chance level
        return (100 - chance) / 2
    return check_threshold(chance, None)


def check_range_test(session: Session) -> None:
    """Raise ValueError if the run needs a range test and its settings are not valid."""
    high = session.config.precision.auto_high
    if high is not None:
        make_settings(session.config, session.task, session.total_steps, high=high)


def find_lower_bound(
    session: Session, directory: RunDirectory, reporter: Reporter, stop_request: StopRequest
) -> None:
    """Find the bits for `auto` before step 0, rebuild the scheduler and save a checkpoint.

    The model and optimizer are restored after the test; its BitOPs count for the run. The
    checkpoint of step 0 holds the outcome. A run that stops earlier repeats the test.
    """
    began = time.monotonic()
    high = session.config.precision.auto_high
    assert high is not None
    settings = make_settings(session.config, session.task, session.total_steps, high=high)
    reporter.say(f"range test: {settings}")

    def stop() -> None:
        if signum := stop_signal(session, stop_request):
            raise Interrupted(
                signum, f"stopped in the range test; {directory.path} repeats it when resumed"
            )

    tested, bitops = run_on_session(
        session, settings, progress=lambda line: reporter.say(str(line)), after_step=stop,
        stop_early=True,
    )  # fmt: skip
    if isinstance(tested, RangeTestError):
        raise tested
    outcome = RangeTestOutcome(test=tested, bitops=bitops)
    session.set_lower_bound(outcome)
    session.seconds += time.monotonic() - began
    assert session.scheduler is not None
    text = session.config.precision.schedule_texts(auto=outcome.test.low)["forward"]
    for line in str(outcome.test.curve).splitlines():
        reporter.say(f"range test  {line}")
    for note in outcome.test.notes:
        reporter.say(f"range test: {note}")
    share = RangeCost(
        steps=outcome.test.curve.num_steps, bitops=sum(bitops.values()),
        run_steps=session.total_steps, run_bitops=run_bitops(session, text),
    )  # fmt: skip
    reporter.say(f"range test: took {share}")
    reporter.say(f"range test: the lower end is {outcome.test.low} bits, forward {text}")
    if session.is_main:
        directory.add_metrics(
            {
                "step": 0,
                "kind": "range_test",
                "criterion": outcome.test.criterion,
                "low": outcome.test.low,
                "high": outcome.test.high,
                "forward": text,
                "gains": outcome.test.curve.to_dict()["gains"],
                "threshold": outcome.test.threshold,
                "bitops": session.bitops,
            }
        )
    keep = session.config.checkpoint.keep
    save_checkpoint(session, directory, Checkpoints(directory.checkpoints, keep=keep))


@dataclass(frozen=True, kw_only=True)
class RangeCost:
    """What a test costs, next to the run it is for.

    >>> print(RangeCost(steps=400, bitops=5 * 10**12, run_steps=64_000, run_bitops=10**15))
    400 steps (0.6 % of the run's), 5e+12 BitOPs (0.5 %)
    """

    steps: int
    bitops: int
    run_steps: int
    run_bitops: int | None  # None: an adaptive schedule, whose cost only the run can tell

    def __str__(self) -> str:
        share = f" ({_percent(self.bitops / self.run_bitops)})" if self.run_bitops else ""
        steps = _percent(self.steps / self.run_steps)
        return f"{self.steps} steps ({steps} of the run's), {self.bitops:.3g} BitOPs{share}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def run_bitops(session: Session, forward: ScheduleText) -> int | None:
    """The BitOPs of the session's run with this forward schedule; None if it is adaptive."""
    config, batch = session.config, session.batches.batch_at(0)
    roles: dict[str, Any] = config.precision.schedule_texts(auto=config.range_test.low)
    try:
        return training_cost(
            session.model,
            session.task.example_inputs(batch.to(session.device)),
            **{**roles, "forward": forward},
            total_steps=session.total_steps,
            samples_per_step=session.task.num_samples(batch),
        ).bitops
    except ValueError:
        return None


@dataclass(frozen=True, kw_only=True)
class RangeReport:
    """The settings and the outcome of a test; `test` is None if no precision passed."""

    config: RunConfig
    settings: RangeTestSettings
    find_upper: bool
    stop_early: bool
    curve: RelativeCurve | RangeCurve
    cost: RangeCost
    info: dict[str, Any]  # machine, threads, and seconds including the loading of data
    test: RangeTest | None = None
    forward: str | None = None  # the schedule to train with

    def to_dict(self) -> dict[str, Any]:
        """JSON types only."""
        return {
            "name": self.config.name,
            "seed": self.config.seed,
            "model": self.config.model.name,
            "data": self.config.data.name,
            "backward": self.config.precision.schedule_texts().get("backward"),
            "plan": asdict(self.settings),
            "find_upper": self.find_upper,
            "stop_early": self.stop_early,
            "low": None if self.test is None else self.test.low,
            "high": None if self.test is None else self.test.high,
            "forward": self.forward,
            "bitops": self.cost.bitops,
            "cost": asdict(self.cost),
            "curve": self.curve.to_dict(),
            **self.info,
        }


def find_precision_range(
    config: RunConfig,
    *,
    high: int | None = None,
    find_upper: bool = False,
    stop_early: bool = False,
    say: Callable[[str], object] = lambda line: None,
) -> tuple[RangeReport, RangeTestError | None]:
    """Run a range test of a configuration's model on its data at its learning rate. Writes nothing.

    high: the most bits to try; by default the top of the forward schedule, 8 if that is float32.
    Returns the report, and the error if no precision passed.
    """
    precision = config.precision
    if precision.is_float:
        raise ValueError(
            f"{config.name} trains in float32: there are no bits to test; give "
            "--precision.forward 8 --precision.backward 8, or another recipe"
        )
    if config.range_test.criterion == "relative" and (find_upper or stop_early):
        raise ValueError(
            "find_upper and stop_early are settings of the paper's criterion, and "
            "range_test.criterion is relative, which always stops at the first bits that fail"
        )
    if high is None:
        top = precision.auto_high or _top(config) or HIGH
        if isinstance(top, Format):
            raise ValueError(
                f"{config.name} trains in {precision.forward}, and a range test lowers the bits of "
                "integers one by one; give --precision.forward 8 with a quantizer of integers, or "
                "compare the formats in a study"
            )
        high = top
    start = config.range_test.low
    filled: Any = precision.schedule_texts(auto=start).get("forward", "fp32")
    runnable = replace(config, precision=replace(precision, forward=filled))
    began = time.monotonic()
    with preserve_torch_settings():
        session = build_session(runnable)
        settings = make_settings(
            runnable, session.task, session.total_steps, high=high, fewest=STEPS_WITHOUT_CYCLES
        )
        say(f"{config.model.name} on {config.data.name}, seed {config.seed}")
        say(f"{settings}")

        tested, bitops = run_on_session(
            session,
            settings,
            progress=lambda line: say(str(line)),
            find_upper=find_upper,
            stop_early=stop_early,
        )
        info = measurement_info(time.monotonic() - began, threads=torch.get_num_threads())
    forward = None
    if isinstance(tested, RangeTest):
        forward = forward_text(config, tested, session.total_steps)
    cost = RangeCost(
        steps=tested.curve.num_steps, bitops=sum(bitops.values()), run_steps=session.total_steps,
        run_bitops=run_bitops(session, filled if forward is None else forward),
    )  # fmt: skip
    report = RangeReport(
        config=config, settings=settings, find_upper=find_upper, stop_early=stop_early,
        curve=tested.curve, cost=cost, info=info, forward=forward,
    )  # fmt: skip
    if isinstance(tested, RangeTestError):
        return report, tested
    return replace(report, test=tested), None


def _top(config: RunConfig) -> Bits:
    forward = config.precision.forward
    texts = list(forward.values()) if isinstance(forward, dict) else [forward]
    tops = [parse_schedule(text).high for text in texts if parse_schedule(text).low is not None]
    return max(tops, key=order, default=None)


def forward_text(config: RunConfig, test: RangeTest, total_steps: int) -> str:
    """The run's cyclic schedule with the bounds of the test, or CPT's if it has none."""
    if test.low == test.high:
        return str(test.low)
    forward = config.precision.schedule_texts(auto=test.low)["forward"]
    if not isinstance(forward, dict):
        schedule = parse_schedule(forward)
        if isinstance(schedule, Cyclic):
            bounds = {"low": test.low, "high": test.high}
            return str(replace(schedule, **bounds))  # type: ignore[type-var]
    cycles = 32 if total_steps >= SHORT_RUN else min(8, total_steps)
    return str(Cycle(test.low, test.high, cycles=cycles))


def run_on_session(
    session: Session,
    settings: RangeTestSettings,
    *,
    progress: Callable[[object], object] | None = None,
    after_step: Callable[[], object] = lambda: None,
    find_upper: bool = False,
    stop_early: bool = False,
) -> tuple[RangeTest | RangeTestError, dict[str, int]]:
    """Run the test on the session's first batches, then restore the session.

    By the relative criterion every precision of repeat r trains on the batches of the same steps,
    those after the steps of repeat r - 1. Returns the test, or the error if no precision passed,
    and the BitOPs it took.
    """
    task = session.task
    is_paper = settings.criterion == "paper"
    meter_before = session.meter.state_dict()
    session.wrapped.train()
    with closing(_Batches(session, settings.steps_per_precision)) as batches:

        def train_step() -> float:
            after_step()
            session.window = {}
            optimizer_step(session, batches.next(), checks_loss=False)
            sums = reduce_sums(session.window, session.device, session.world_size)
            metrics = task.metrics(sums)
            if not math.isfinite(metrics["loss"]):
                return math.nan
            sign = -1 if settings.metric == "loss" and is_paper else 1
            return sign * metrics[settings.metric]

        common: dict[str, Any] = {
            "restore": [session.optimizer, session.lr, task],
            "bit_range": (settings.low, settings.high),
            "steps_per_precision": settings.steps_per_precision,
            "window": settings.window,
            "backward": _error_bits(session, settings.low),
            "progress": progress,
        }
        arguments = session.model, train_step, lambda bits: _precision_at(session, bits)
        try:
            if is_paper:
                assert settings.threshold is not None
                tested: RangeTest | RangeTestError = run_range_test(
                    *arguments,
                    threshold=settings.threshold,
                    reset=settings.reset,
                    find_upper=find_upper,
                    stop_early=stop_early,
                    name="-loss" if settings.metric == "loss" else settings.metric,
                    **common,
                )
            else:
                tested = run_relative_test(
                    *arguments,
                    share=settings.share,
                    repeats=settings.repeats,
                    name=settings.metric,
                    rewind=batches.rewind,
                    **common,
                )
        except RangeTestError as error:
            tested = error
        finally:
            bitops = session.meter.by_matmul()
            session.window = {}
            session.meter.load_state_dict(meter_before)
    return tested, bitops


class _Batches:
    """The session's batches, which depend on seed and step only, from the first of a repeat on."""

    def __init__(self, session: Session, steps_per_repeat: int) -> None:
        self._session, self._steps_per_repeat = session, steps_per_repeat
        self._steps = remaining_steps(session, is_endless=True)

    def next(self) -> list[Batch]:
        return next(self._steps)

    def rewind(self, repeat: int) -> None:
        """Continue with the first batch of a repeat."""
        self.close()
        start = self._session.step + repeat * self._steps_per_repeat
        self._steps = remaining_steps(self._session, start=start, is_endless=True)

    def close(self) -> None:
        self._steps.close()


def _precision_at(session: Session, bits: int) -> Precision | dict[str, Precision]:
    """The run's precision at step 0 with `bits` as the forward schedule."""
    texts: dict[str, Any] = dict(session.config.precision.schedule_texts(auto=bits))
    texts["forward"] = _fixed(texts.get("forward"), bits)
    keywords = ("forward", "backward", *ROLES)
    layers = quantized_layers(session.model)
    total = session.total_steps
    schedules = resolve_schedules(layers, {key: texts.get(key, INHERIT) for key in keywords}, total)
    by_layer = {
        entry.name: Precision(**{r: s(0, total) for r, s in zip(ROLES, by_role, strict=True)})
        for (entry, _), by_role in zip(layers, schedules, strict=True)
    }
    distinct = set(by_layer.values())
    return distinct.pop() if len(distinct) == 1 else by_layer


def _fixed(forward: ScheduleText, bits: int) -> ScheduleText:
    """`bits` for every layer, except for patterns that keep layers in float32 or a format."""
    if not isinstance(forward, dict):
        return bits
    fixed: dict[str, int | str | None] = {}
    for pattern, text in forward.items():
        low = parse_schedule(text).low
        fixed[pattern] = text if isinstance(low, Format) else None if low is None else bits
    return fixed


def _error_bits(session: Session, bits: int) -> Bits:
    """The most bits that errors, the gradients of layer outputs, have in the test."""
    precision = _precision_at(session, bits)
    rows = [precision] if isinstance(precision, Precision) else list(precision.values())
    return max((row.error for row in rows), key=order)
