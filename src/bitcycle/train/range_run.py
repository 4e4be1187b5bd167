"""A precision range test of a configuration on its own, as `bitcycle range-test` does."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from bitcycle.range_test import RangeCurve, RangeProgress, RangeTest, RangeTestError
from bitcycle.schedules import Bits, Cycle, parse_schedule
from bitcycle.schedules.checks import order
from bitcycle.schedules.cyclic import Cyclic
from bitcycle.train.config import RunConfig
from bitcycle.train.find_low import run_on_session
from bitcycle.train.measured import measured
from bitcycle.train.range_plan import RangePlan, plan_range_test
from bitcycle.train.reproduce import kept_settings
from bitcycle.train.session import build_session

FEWEST = 100  # steps at a precision, where no cycle of a run limits them
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
            runnable, session.task, session.total_steps, high=high, fewest=FEWEST
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
