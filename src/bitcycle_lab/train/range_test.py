"""The precision range test of a run, on its own model and data.

`find_lower_bound` replaces `auto` in a run's forward schedule before step 0;
`find_precision_range` is `bitcycle range-test`, which trains no run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from bitcycle.bits import Bits, order
from bitcycle.model_precision import quantized_layers
from bitcycle.precision import ROLES, Precision
from bitcycle.range_criteria import RangeTest, RangeTestConfig, RangeTestError
from bitcycle.range_test import run_range_test
from bitcycle.role_schedules import INHERIT, resolve_schedules
from bitcycle.schedules import Cycle, parse_schedule
from bitcycle.schedules.cycle import DEFAULT_CYCLES, Cyclic
from bitcycle_lab.tasks import Task
from bitcycle_lab.train.checkpoint import Checkpoints
from bitcycle_lab.train.config import RunConfig, ScheduleText
from bitcycle_lab.train.distributed import reduce_sums
from bitcycle_lab.train.loop import optimizer_step, remaining_steps, save_checkpoint, stop_signal
from bitcycle_lab.train.progress import Reporter
from bitcycle_lab.train.run_directory import RunDirectory, measurement_info
from bitcycle_lab.train.session import (
    RangeTestOutcome,
    Session,
    build_session,
    preserve_torch_settings,
)
from bitcycle_lab.train.signals import Interrupted, StopRequest

HIGH = 8  # highest precision to try if the forward schedule is float32
LONG_RUN = 3200  # steps from which on 32 cycles are suggested, not 8
# relative criterion
RUN_SHARE = 0.02  # of the run's steps, for the whole test
FEWEST_STEPS, MOST_STEPS = 20, 100  # per precision, by default
TESTED_AGAIN = 3  # precisions per further repeat: the most bits, the bound, the bits below it
# the paper's criterion
FEWEST_PAPER_STEPS = 100


# -- settings -------------------------------------------------------------------------------------


def complete_settings(config: RunConfig, task: Task, total_steps: int) -> RangeTestConfig:
    """The run's `range_test` settings, with defaults from its schedule, task and length."""
    high = config.range_test.high or _highest(config)
    asked = replace(config.range_test, high=high)
    top = config.precision.auto_high
    if top is not None and high > top:
        raise ValueError(
            f"range_test.high ({high}) must be <= {top}, the top of {config.precision.forward}"
        )
    number = high - asked.low + 1
    threshold = None
    if asked.is_paper:
        steps = max(_cycle_steps(config, total_steps) // number, FEWEST_PAPER_STEPS)
        threshold = _default_threshold(task) if asked.threshold is None else asked.threshold
    else:
        runs = number + TESTED_AGAIN * (asked.repeats - 1)
        steps = min(max(int(RUN_SHARE * total_steps / runs), FEWEST_STEPS), MOST_STEPS)
    return asked.complete(high=high, steps_per_precision=steps, threshold=threshold)


def _highest(config: RunConfig) -> int:
    """The top of the forward schedule, 8 bits if it is float32."""
    precision = config.precision
    if precision.auto_high is not None:
        return precision.auto_high
    forward = precision.forward
    texts = list(forward.values()) if isinstance(forward, dict) else [forward]
    schedules = [schedule for schedule in map(parse_schedule, texts) if schedule.low is not None]
    top = max((schedule.high for schedule in schedules), key=order, default=None)
    if top is None:
        return HIGH
    if not isinstance(top, int):
        raise ValueError(
            f"{config.name} trains in {forward}, and a range test lowers the bits of integers one "
            "by one; give --precision.forward 8 with a quantizer of integers"
        )
    return top


def _cycle_steps(config: RunConfig, total_steps: int) -> int:
    forward = config.precision.schedule_texts(auto=config.range_test.low)["forward"]
    cycles = 0 if isinstance(forward, dict) else parse_schedule(forward).count_cycles(total_steps)
    return total_steps // (cycles or DEFAULT_CYCLES)


def _default_threshold(task: Task) -> float:
    """2 x chance; half of what is left to 100 % if an accuracy cannot gain that much."""
    if task.chance is None:
        raise ValueError(
            f"the {task.metric} of this task has no chance level to derive a threshold from: set "
            "range_test.threshold, such as 0.5, or range_test.criterion relative"
        )
    return 2 * task.chance if 3 * task.chance < 100 else (100 - task.chance) / 2


# -- in a run -------------------------------------------------------------------------------------


def find_lower_bound(
    session: Session, directory: RunDirectory, reporter: Reporter, stop_request: StopRequest
) -> None:
    """Find the bits for `auto` before step 0, rebuild the scheduler and save a checkpoint.

    The model and optimizer are restored after the test; its BitOPs count for the run. The
    checkpoint of step 0 holds the outcome. A run that stops earlier repeats the test.
    """
    began = time.monotonic()

    def stop() -> None:
        if signum := stop_signal(session, stop_request):
            raise Interrupted(
                signum, f"stopped in the range test; {directory.path} repeats it when resumed"
            )

    test, error, bitops = run_on_session(session, say=reporter.say, before_step=stop)
    if error is not None:
        raise error
    session.set_lower_bound(RangeTestOutcome(test=test, bitops=bitops))
    session.seconds += time.monotonic() - began
    text = session.config.precision.schedule_texts(auto=test.low)["forward"]
    for line in filter(None, str(test).splitlines()):
        reporter.say(f"range test  {line}")
    cost = cost_text(test.num_steps, sum(bitops.values()), session.total_steps)
    reporter.say(f"range test: took {cost}; forward {text}")
    if session.is_main:
        found = {"kind": "range_test", "low": test.low, "forward": text}
        directory.add_metrics({"step": 0, **found, "bitops": session.bitops})
    keep = session.config.checkpoint.keep
    save_checkpoint(session, directory, Checkpoints(directory.checkpoints, keep=keep))


def cost_text(steps: int, bitops: int, run_steps: int) -> str:
    """The cost of a test, next to the length of the run it is for.

    >>> cost_text(400, 5 * 10**12, 64_000)
    "400 steps (0.6 % of the run's), 5e+12 BitOPs"
    """
    return f"{steps} steps ({100 * steps / run_steps:.1f} % of the run's), {bitops:.3g} BitOPs"


# -- on its own -----------------------------------------------------------------------------------


def find_precision_range(
    config: RunConfig, *, say: Callable[[str], object] = lambda line: None
) -> tuple[RangeTest, RangeTestError | None, dict[str, Any]]:
    """Run a range test of a configuration's model on its data. Writes nothing.

    Returns the test, the error if no precision passed, and a report of JSON types.
    """
    if config.precision.is_float:
        raise ValueError(
            f"{config.name} trains in float32: there are no bits to test; give "
            "--precision.forward 8 --precision.backward 8, or another recipe"
        )
    _highest(config)  # raises now, before the data is read
    began = time.monotonic()
    with preserve_torch_settings():
        session = build_session(config)
        say(f"{config.model.name} on {config.data.name}, seed {config.seed}")
        test, error, bitops = run_on_session(session, say=say)
        info = measurement_info(time.monotonic() - began, threads=torch.get_num_threads())
    low = test.low if error is None else None
    return (
        test,
        error,
        {
            "name": config.name,
            "seed": config.seed,
            "model": config.model.name,
            "data": config.data.name,
            "backward": config.precision.schedule_texts().get("backward"),
            "low": low,
            "forward": low and forward_text(config, low, test.high, session.total_steps),
            "steps": test.num_steps,
            "run_steps": session.total_steps,
            "bitops": sum(bitops.values()),
            "test": test.to_dict(),
            **info,
        },
    )


def forward_text(config: RunConfig, low: int, high: int, total_steps: int) -> str:
    """The run's cyclic schedule from low to high bits, or CPT's if it has none."""
    if low == high:
        return str(low)
    forward = config.precision.schedule_texts(auto=low)["forward"]
    if not isinstance(forward, dict):
        schedule = parse_schedule(forward)
        if isinstance(schedule, Cyclic):
            return str(replace(schedule, low=low, high=high, levels=()))
    return str(Cycle(low, high, cycles=32 if total_steps >= LONG_RUN else 8))


# -- training -------------------------------------------------------------------------------------


def run_on_session(
    session: Session,
    *,
    say: Callable[[str], object],
    before_step: Callable[[], object] = lambda: None,
) -> tuple[RangeTest, RangeTestError | None, dict[str, int]]:
    """Run the test on the session's first batches, then restore the session.

    By the relative criterion every precision of repeat r trains on the batches of the same steps,
    those after the steps of repeat r - 1. Returns the test, the error if no precision passed, and
    the BitOPs it took.
    """
    task = session.task
    settings = complete_settings(session.config, task, session.total_steps)
    metric = task.metric if settings.is_paper and task.higher_is_better else "loss"
    say(f"range test: {settings}")
    meter_before = session.meter.state_dict()
    session.wrapped.train()
    batches = remaining_steps(session, is_endless=True)  # they depend on seed and step only

    def rewind(repeat: int) -> None:
        nonlocal batches
        assert settings.steps_per_precision is not None
        batches.close()
        start = session.step + repeat * settings.steps_per_precision
        batches = remaining_steps(session, start=start, is_endless=True)

    def train_step() -> float:
        before_step()
        session.window = {}
        optimizer_step(session, next(batches), checks_loss=False)
        sums = reduce_sums(session.window, session.device, session.world_size)
        metrics = task.metrics(sums)
        return metrics[metric] if math.isfinite(metrics["loss"]) else math.nan

    failure = None
    try:
        test = run_range_test(
            session.model,
            train_step,
            lambda bits: _precision_at(session, bits),
            settings,
            name=metric,
            higher_is_better=metric != "loss",
            total_steps=session.total_steps,
            restore=[session.optimizer, session.lr, task],
            rewind=rewind,
            progress=say,
        )
    except RangeTestError as error:
        test, failure = error.test, error
    finally:
        bitops = session.meter.by_matmul()
        session.window = {}
        session.meter.load_state_dict(meter_before)
        batches.close()
    return test, failure, bitops


def _precision_at(session: Session, bits: int) -> Precision | dict[str, Precision]:
    """The run's precision at step 0 with `bits` as the forward schedule."""
    texts: dict[str, Any] = dict(session.config.precision.schedule_texts(auto=bits))
    texts["forward"] = _fixed(texts.get("forward"), bits)
    keywords = ("forward", "backward", *ROLES)
    layers = quantized_layers(session.model)
    total = session.total_steps
    schedules = resolve_schedules(layers, {key: texts.get(key, INHERIT) for key in keywords}, total)
    by_layer = {  # integers, so the backward products have forward's operands
        entry.name: Precision().replace(
            **{r: s(0, total) for r, s in zip(ROLES, by_role, strict=True)}
        )
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
        fixed[pattern] = text if Bits.of(low).is_format else None if low is None else bits
    return fixed
