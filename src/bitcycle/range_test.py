"""The precision range test: the lowest precision that still learns.

`precision_range_test` trains for a number of steps at each bit-width and returns a `RangeTest` with
the lower bound and the curve that it comes from. `range_curves.py` has the rules.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from bitcycle.model_precision import quantized_layers, set_precision
from bitcycle.nn.layer import advance_clocks
from bitcycle.nonfinite import NonFiniteCheck, NonFiniteError
from bitcycle.ops.noise import hash_ints
from bitcycle.precision import Precision
from bitcycle.range_curves import (
    NOISE,
    REPEATS,
    SHARE,
    Criterion,
    PrecisionRun,
    RangeCurve,
    RangeTestConfig,
)
from bitcycle.schedules import Schedule, ScheduleLike, Static, parse_schedule, schedule
from bitcycle.schedules.cycle import DEFAULT_CYCLES
from bitcycle.snapshot import Snapshot, Stateful

TrainStep = Callable[[], Any]  # one optimizer step; returns anything that float() takes
PrecisionAt = Callable[[int], Precision | dict[str, Precision]]
MIN_REPEATS = 2  # a spread needs two


def precision_range_test(
    model: nn.Module,
    train_step: TrainStep,
    *,
    restore: Iterable[Stateful] = (),
    low: int = 2,
    high: int = 8,
    steps_per_precision: int,
    window: int | None = None,
    criterion: Criterion | None = None,
    metric: Literal["loss", "accuracy"] | None = None,
    share: float = SHARE,
    repeats: int = REPEATS,
    rewind: Callable[[int], object] | None = None,
    chance: float | None = None,
    threshold: float | None = None,
    backward: ScheduleLike = 8,
    name: str | None = None,
    progress: Callable[[str], object] | None = None,
) -> RangeTest:
    """Train for `steps_per_precision` steps at high, high - 1, ... bits, and find the lower bound.

    gain(b) = L0 - mean(last `window` losses at b bits), L0 = mean(first `window` losses at `high`);
    lower bound = the fewest b with gain(b) >= share x gain(high), at which all higher bits pass.

    train_step: one optimizer step of your own loop, without the PrecisionScheduler; returns the
    training loss, or with metric="accuracy" a number that rises. Weights and activations have b
    bits; the errors, which are the gradients with respect to a layer's output, have `backward`
    bits. window: a quarter of the steps by default.

    Every precision starts from the same state: the model, everything in `restore` and the random
    generators of torch, numpy and Python are restored to the bit. Other data that train_step draws
    is not rewound. rewind: a function that rewinds it; it is called before every precision with the
    number of the repeat, and with 0 after the test. The test is repeated with other random seeds,
    twice at least and `repeats` times at most, until no decision is within two standard errors; a
    repeat tests the bits again that decide. The test ends at the first bits that clearly fail. A
    loss at `high` bits that does not fall by more than noise is a `RangeTestError`. A NaN (metric,
    weights, or a `NonFiniteError`) means that the bits fail.

    criterion="paper", which a `threshold` or `chance` implies, is the test of CPT: training
    continues from low to high bits, gain(b) = mean(last window at b bits) - mean(first window at b
    bits), and the test ends at the first b with gain(b) > threshold, the lower bound. Its metric
    rises; with metric="loss" it falls. Pass one of `threshold` and `chance`, the accuracy of a
    random guess: threshold = 2 x chance. If no bits pass, the test raises a `RangeTestError`.

    progress: called with a line of text after every precision. Afterwards, also after an error,
    everything is restored. Under torch.distributed every process takes part, and the metric is the
    mean over them.
    """
    error = parse_schedule(backward)
    if not isinstance(error, Static):
        raise ValueError(f"backward ({error}) must be a number of bits or fp32 in a range test")
    if metric not in (None, "loss", "accuracy"):
        raise ValueError(
            f"metric ({metric!r}) must be 'loss', for a number that falls, or 'accuracy', for one "
            "that rises"
        )
    if chance is not None and threshold is not None:
        raise ValueError(f"pass chance ({chance}) or threshold ({threshold}), not both")
    if chance is not None and not 0 < chance < math.inf:
        raise ValueError(f"chance ({chance}) must be greater than 0, such as 1 / num_classes")
    threshold = threshold if chance is None else 2 * chance
    settings = RangeTestConfig(
        criterion=criterion, low=low, high=high, steps_per_precision=steps_per_precision,
        window=window, share=share, repeats=repeats, threshold=threshold,
    )  # fmt: skip
    if settings.is_paper and threshold is None:
        raise ValueError("criterion paper needs a threshold or chance, the accuracy of a guess")
    if settings.is_paper and rewind is not None:
        raise ValueError("rewind is for criterion relative, not for paper, which never rewinds")
    return run_range_test(
        model,
        train_step,
        lambda bits: Precision(weight=bits, act=bits, error=error.bits, grad=error.bits),
        settings.complete(high=high, steps_per_precision=steps_per_precision),
        name=name or metric or ("metric" if settings.is_paper else "loss"),
        higher_is_better=metric == "accuracy" or (metric is None and settings.is_paper),
        restore=restore,
        rewind=rewind,
        progress=progress,
    )


# -- the test -------------------------------------------------------------------------------------


def run_range_test(
    model: nn.Module,
    train_step: TrainStep,
    precision_at: PrecisionAt,
    settings: RangeTestConfig,
    *,
    name: str,
    higher_is_better: bool,
    restore: Iterable[Stateful] = (),
    rewind: Callable[[int], object] | None = None,
    progress: Callable[[str], object] | None = None,
) -> RangeTest:
    """`precision_range_test` with complete settings and the layers' precision at b bits."""
    low, high, num_steps = settings.low, settings.high, settings.steps_per_precision
    assert high is not None
    assert num_steps is not None
    trainer = _Trainer(model, train_step, name)
    start = Snapshot(model, restore)
    runs: list[PrecisionRun] = []

    def curve() -> RangeCurve:
        return RangeCurve(
            settings=settings, runs=tuple(runs), name=name, higher_is_better=higher_is_better
        )

    order = _paper_order(low, high, curve)
    if not settings.is_paper:
        order = _relative_order(low, high, settings.repeats, curve)
    try:
        for bits in range(high, low - 1, -1):  # raises now if a layer cannot have these bits
            set_precision(model, precision_at(bits))  # type: ignore[arg-type]
        for repeat, bits in order:
            if not settings.is_paper:
                start.restore()
                _begin_repeat(repeat, rewind)
            elif runs and not runs[-1].is_finite:
                start.restore()
            set_precision(model, precision_at(bits))  # type: ignore[arg-type]
            began, number = time.monotonic(), bits - low if settings.is_paper else repeat
            metric = trainer.train(num_steps, first_clock=number * num_steps)
            runs.append(PrecisionRun(repeat, bits, metric))
            if progress:
                progress(_progress_line(curve(), time.monotonic() - began))
            if len(runs) == 1 and not settings.is_paper:
                _check_top(curve())
    finally:
        start.restore()
        if rewind is not None:
            rewind(0)
    return _make_result(curve())


def _paper_order(low: int, high: int, curve: Callable[[], RangeCurve]) -> Iterator[tuple[int, int]]:
    """(repeat, bits) of every training: rising bits up to the first that pass."""
    for bits in range(low, high + 1):
        yield 0, bits
        if curve().decision(bits) == "passes":
            return


def _relative_order(
    low: int, high: int, repeats: int, curve: Callable[[], RangeCurve]
) -> Iterator[tuple[int, int]]:
    """(repeat, bits) of every training: falling bits down to the first that clearly fail.

    Further repeats train at the bits that decide: the most bits, the lower bound, the bits below
    it, and what is within noise.
    """
    precisions = range(high, low - 1, -1)
    for repeat in range(repeats):
        before = curve()
        decisions = [before.decision(bits) for bits in precisions]
        first = next((each for each in decisions if each != "passes"), "fails")
        if repeat >= MIN_REPEATS and first == "fails":
            return
        bound = before.lower_bound
        for bits in precisions:
            is_near = bound is not None and bits in (bound, bound - 1)
            if bits == high or is_near or curve().decision(bits) == "open":
                yield repeat, bits
            if curve().decision(bits) == "fails":
                break


def _begin_repeat(repeat: int, rewind: Callable[[int], object] | None) -> None:
    """Seed the generators from their present state and the number of the repeat; rewind data."""
    if repeat > 0:
        base = int(torch.randint(2**31, ()))
        seed = hash_ints(base, repeat) % 2**32
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
    if rewind is not None:
        rewind(repeat)


def _progress_line(curve: RangeCurve, seconds: float) -> str:
    run = curve.runs[-1]
    ends = f"{curve.start(run):.4g} -> {curve.end(run):.4g}" if run.is_finite else "not finite"
    repeat = "" if curve.settings.is_paper else f"repeat {run.repeat + 1}  "
    return (
        f"range test  {repeat}{run.bits} bits  {curve.name} {ends}  "
        f"{len(run.metric)} steps in {seconds:.1f} s"
    )


def _make_result(curve: RangeCurve) -> RangeTest:
    settings = curve.settings
    if not settings.is_paper:
        _check_top(curve)
    low, high = curve.lower_bound, settings.high
    assert high is not None
    if low is None:
        raise RangeTestError(
            f"no precision from {settings.low} to {high} bits passes: no gain in {curve.name} "
            f"exceeds {settings.threshold:g}. Use more steps per precision or a lower threshold"
            f"\n\n{curve}",
            curve,
        )
    return RangeTest(low=low, high=high, curve=curve)


def _check_top(curve: RangeCurve) -> None:
    """Raise unless the model learned at the most bits."""
    high = curve.precisions[-1]
    top = curve.verdicts[high]
    if math.isnan(top.gain):
        raise RangeTestError(
            f"training diverges at {high} bits, which fewer bits are compared with", curve
        )
    if not top.gain > NOISE * top.error:
        other, change = ("loss", "fall") if curve.higher_is_better else ("accuracy", "rise")
        raise RangeTestError(
            f"the model learns no more than noise (two standard errors) at {high} bits: "
            f"{curve.name} {top.start:.4g} -> {top.end:.4g} ± {top.error:.2g} in "
            f"{curve.settings.steps_per_precision} steps. Use more steps per precision; if a "
            f'{change} is progress, pass metric="{other}"',
            curve,
        )


class _Trainer:
    """Takes steps of the caller's loop until training diverges, which is NaN."""

    def __init__(self, model: nn.Module, train_step: TrainStep, name: str) -> None:
        named = quantized_layers(model)
        self._model, self._train_step, self._name = model, train_step, name
        self._layers = [layer for _, layer in named]
        self._health = NonFiniteCheck([entry.name for entry, _ in named], self._layers)
        self._clock = self._layers[0].shared.step

    def train(self, num_steps: int, *, first_clock: int) -> tuple[float, ...]:
        """The metric of every step; NaN is the last. first_clock: of the rounding noise."""
        metrics: list[float] = []
        for step in range(num_steps):
            advance_clocks(self._layers, self._clock + first_clock + step)
            metrics.append(self._step(is_last=step + 1 == num_steps))
            if math.isnan(metrics[-1]):
                break
        return tuple(metrics)

    def _step(self, *, is_last: bool) -> float:
        """The metric of one step, averaged over processes; NaN if the model diverged."""
        expected = [layer.precision for layer in self._layers]
        self._health.clear()
        try:
            metric = self._number(self._train_step())
        except NonFiniteError:
            metric = math.nan
        if [layer.precision for layer in self._layers] != expected:
            raise ValueError(
                "train_step changed the bits of the model, which the range test sets; remove the "
                "PrecisionScheduler's step() from it"
            )
        if not math.isfinite(metric) or self._has_diverged(look=is_last):
            metric = math.nan
        metric = self._over_processes(metric)
        return metric if math.isfinite(metric) else math.nan

    def _number(self, metric: Any) -> float:
        try:
            return float(metric.detach() if isinstance(metric, torch.Tensor) else metric)
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(
                f"train_step must return the {self._name} as a number, got {metric!r:.80}"
            ) from None

    def _has_diverged(self, *, look: bool) -> bool:
        """Whether the weights are NaN; checked if `look`, or if a NaN reached a layer.

        A NaN in a layer need not reach the weights: a GradScaler skips such steps.
        """
        try:
            self._health.check(0, self._layers[0].precision, can_wait=True)
        except NonFiniteError:
            look = True
        return look and not all(bool(torch.isfinite(p).all()) for p in self._model.parameters())

    def _over_processes(self, metric: float) -> float:
        if not (dist.is_available() and dist.is_initialized()):
            return metric
        device = self._layers[0].control.device
        total = torch.tensor(metric, dtype=torch.float64, device=device)
        dist.all_reduce(total)
        return float(total) / dist.get_world_size()


# -- results --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RangeTest:
    """The result of a test. low: the lower bound. high: the most bits of the test."""

    low: int
    high: int
    curve: RangeCurve

    def schedule(self, name: str = "CR", *, cycles: int = DEFAULT_CYCLES) -> Schedule:
        """The named cyclic schedule from `low` to `high` bits."""
        return schedule(name, low=self.low, high=self.high, cycles=cycles)

    def __str__(self) -> str:
        return f"{self.curve}\n\nlower bound: {self.low} bits"

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of JSON types."""
        return {"low": self.low, "high": self.high, "curve": self.curve.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RangeTest:
        """Return the test that `to_dict` describes."""
        curve = RangeCurve.from_dict(data["curve"])
        return cls(low=data["low"], high=data["high"], curve=curve)


class RangeTestError(ArithmeticError):
    """No precision passed; `curve` has the metrics."""

    def __init__(self, message: str, curve: RangeCurve) -> None:
        super().__init__(message, curve)  # both, since an exception is pickled with its args
        self.curve = curve

    def __str__(self) -> str:
        return str(self.args[0])
