"""The precision range test on a run: its own model, data, optimizer and learning rate."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from bitcycle.assign import quantized_layers
from bitcycle.precision import ROLES, Precision
from bitcycle.range_test import RangeProgress, RangeTest, RangeTestError, run_range_test
from bitcycle.role_schedules import INHERIT, role_schedules
from bitcycle.schedules import parse_schedule
from bitcycle.train.checkpoint import Checkpoints
from bitcycle.train.config import ScheduleText
from bitcycle.train.directory import RunDirectory
from bitcycle.train.evaluate import reduce_sums
from bitcycle.train.loop import save, steps_of_run, stop_signal, update
from bitcycle.train.progress import Reporter
from bitcycle.train.range_plan import RangePlan, plan_range_test
from bitcycle.train.session import FoundLow, Session
from bitcycle.train.signals import Interrupted, StopWish


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
    plans = role_schedules(layers, {key: given.get(key, INHERIT) for key in keywords}, total)
    by_layer = {
        entry.name: Precision(**{r: s(0, total) for r, s in zip(ROLES, plan, strict=True)})
        for (entry, _), plan in zip(layers, plans, strict=True)
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
