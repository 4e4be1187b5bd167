"""The precision range test: the fewest bits at which a model learns nearly as fast as at the most.

`precision_range_test` trains for a number of steps at each bit-width and returns a `RangeTest` with
the bounds and the curve that they come from. There are two criteria: `relative` compares the bits
with each other, `paper` is that of CPT (ICLR 2021). `range_curves.py` has their rules.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from bitcycle.formats.catalogue import Format
from bitcycle.model_precision import quantized_layers, set_precision
from bitcycle.nn.layer import advance_clocks
from bitcycle.nonfinite import NonFiniteCheck, NonFiniteError
from bitcycle.ops.noise import hash_ints
from bitcycle.precision import Precision, check_bits
from bitcycle.range_curves import (
    NOISE,
    SHARE,
    Criterion,
    PrecisionRun,
    RangeCurve,
    RelativeCurve,
    curve_from_dict,
)
from bitcycle.schedules import Bits, Schedule, ScheduleLike, Static, parse_schedule, schedule
from bitcycle.schedules.base import bits_text, check_range
from bitcycle.schedules.cycle import DEFAULT_CYCLES
from bitcycle.snapshot import Snapshot, Stateful

TrainStep = Callable[[], Any]  # one optimizer step; returns anything that float() takes
NUM_REPORTS = 5  # progress reports per precision of the paper's criterion
WINDOWS = 4  # by default a window is a quarter of the steps per precision
REPEATS = 3  # at most
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
    share: float | None = None,
    repeats: int | None = None,
    rewind: Callable[[int], object] | None = None,
    chance: float | None = None,
    threshold: float | None = None,
    backward: ScheduleLike = 8,
    reset: bool = False,
    find_upper: bool = False,
    stop_early: bool = False,
    name: str | None = None,
    progress: Callable[[object], object] | None = None,
) -> RangeTest:
    """Train for `steps_per_precision` steps at high, high - 1, ... bits, and find the lower bound.

    drop(b) = L0 - mean(last `window` losses at b bits), L0 = mean(first `window` losses at `high`);
    lower bound = the fewest b with drop(b) >= share x drop(high), at which all higher bits pass.

    train_step: one optimizer step of your own loop, without the PrecisionScheduler; returns the
    training loss, or with metric="accuracy" a number that rises. Weights and activations have b
    bits; the errors, which are the gradients with respect to a layer's output, have `backward`
    bits. window: a quarter of the steps by default. share: 0.9 by default.

    Every precision starts from the same state: the model, everything in `restore` and the random
    generators of torch, numpy and Python are restored to the bit. Only what `restore` covers is
    rewound: other data that train_step draws is not. rewind: a function that rewinds the data; it
    is called before every precision with the number of the repeat, and with 0 after the test. The
    test is repeated with other random seeds, twice at least and `repeats` times (3) at most, until
    no decision is within two standard errors; a repeat tests the bits again that decide. The test
    ends at the first bits that clearly fail. A loss at `high` bits that does not fall by more than
    noise is a `RangeTestError`. A NaN (metric, weights, or a `NonFiniteError`) means that the bits
    fail.

    criterion="paper", which a `threshold` or `chance` implies, is that of CPT: training continues
    from low to high bits, gain(b) = mean(last window at b bits) - mean(first window at b bits), and
    the lower bound is the first b with gain(b) > threshold. Its metric rises; metric="loss" negates
    it. Pass one of `threshold` and `chance`, the accuracy of a random guess: threshold = 2 x
    chance. reset: start each precision from the same state. find_upper: `high` of the result is the
    fewest bits at which one more adds less than the threshold. stop_early: end the test when a
    precision passes. If no bits pass, the test raises a `RangeTestError` with the curve.

    Afterwards, also after an error, everything is restored. Under torch.distributed every process
    takes part, and the metric is the mean over them.
    """
    check_integers(low, high)
    error = parse_schedule(backward)
    if not isinstance(error, Static):
        raise ValueError(f"backward ({error}) must be a number of bits or fp32 in a range test")
    if metric not in (None, "loss", "accuracy"):
        raise ValueError(
            f"metric ({metric!r}) must be 'loss', for a number that falls, or 'accuracy', for one "
            "that rises"
        )
    only_paper = {"threshold": threshold, "chance": chance, "reset": reset or None,
                  "find_upper": find_upper or None, "stop_early": stop_early or None}  # fmt: skip
    only_relative = {"share": share, "repeats": repeats, "rewind": rewind}
    criterion = choose_criterion(criterion, only_relative, only_paper)
    window = max(2, steps_per_precision // WINDOWS) if window is None else window

    def precision_at(bits: int) -> Precision:
        return Precision(weight=bits, act=bits, error=error.bits, grad=error.bits)

    if criterion == "relative":
        return run_relative_test(
            model,
            train_step,
            precision_at,
            restore=restore,
            bit_range=(low, high),
            steps_per_precision=steps_per_precision,
            window=window,
            share=SHARE if share is None else share,
            repeats=REPEATS if repeats is None else repeats,
            backward=error.bits,
            name=name or metric or "loss",
            higher_is_better=metric == "accuracy",
            rewind=rewind,
            progress=progress,
        )
    is_loss = metric == "loss"
    return run_range_test(
        model,
        (lambda: -train_step()) if is_loss else train_step,
        precision_at,
        restore=restore,
        bit_range=(low, high),
        steps_per_precision=steps_per_precision,
        window=window,
        threshold=check_threshold(chance, threshold),
        backward=error.bits,
        reset=reset,
        find_upper=find_upper,
        stop_early=stop_early,
        name=name or ("-loss" if is_loss else metric or "metric"),
        progress=progress,
    )


def check_integers(*bits: object) -> None:
    """Raise ValueError if any bits are a format: a test lowers a number of bits one by one."""
    for each in bits:
        if isinstance(each, Format | str):
            raise ValueError(
                f"a range test lowers the bits of integers one by one, and {each} is a format; "
                "give low and high as numbers. To choose among formats, compare short runs of each "
                "(bitcycle study), or their cost (bitcycle cost)"
            )


def choose_criterion(
    criterion: str | None,
    only_relative: Mapping[str, object],
    only_paper: Mapping[str, object],
    *,
    prefix: str = "",
) -> Criterion:
    """The criterion: as given, else the paper's if one of its own settings is, else relative.

    >>> choose_criterion(None, {"share": None}, {"threshold": 0.2})
    'paper'
    """
    given = [name for name, value in only_paper.items() if value is not None]
    chosen = criterion or ("paper" if given else "relative")
    if chosen not in ("relative", "paper"):
        raise ValueError(f"{prefix}criterion ({chosen!r}) must be 'relative' or 'paper'")
    others = only_relative if chosen == "paper" else only_paper
    wrong = [f"{prefix}{name}" for name, value in others.items() if value is not None]
    if wrong:
        other = "relative" if chosen == "paper" else "paper"
        raise ValueError(
            f"{', '.join(wrong)} {'is a setting' if len(wrong) == 1 else 'are settings'} of the "
            f"{other} criterion, and the criterion is {chosen}: leave it out, or set "
            f"{prefix}criterion to {other}"
        )
    return "paper" if chosen == "paper" else "relative"


def check_threshold(chance: float | None, threshold: float | None) -> float:
    """The threshold of the gain, from exactly one of the two.

    >>> check_threshold(0.1, None)
    0.2
    """
    if (chance is None) == (threshold is None):
        raise ValueError(
            f"pass exactly one of chance ({chance}), the accuracy of a random guess in the "
            f"metric's unit, and threshold ({threshold}), the gain above which bits pass"
        )
    if chance is not None and not (math.isfinite(chance) and chance > 0):
        raise ValueError(f"chance ({chance}) must be greater than 0, such as 1 / num_classes")
    if threshold is not None and not (math.isfinite(threshold) and threshold >= 0):
        raise ValueError(f"threshold ({threshold}) must be a number of at least 0")
    return 2 * chance if chance is not None else float(threshold or 0)


def check_lengths(steps_per_precision: int, window: int) -> None:
    """Raise unless a precision has room for a first and a last window."""
    if window < 1:
        raise ValueError(f"window ({window}) must be at least 1 step")
    if steps_per_precision < 2 * window:
        raise ValueError(
            f"steps_per_precision ({steps_per_precision}) must be at least 2 x window ({window}): "
            "the gain is the last window's mean minus the first one's"
        )


# -- the paper's criterion ------------------------------------------------------------------------


def run_range_test(
    model: nn.Module,
    train_step: TrainStep,
    precision_at: Callable[[int], Precision | dict[str, Precision]],
    *,
    restore: Iterable[Stateful] = (),
    bit_range: tuple[int, int],
    steps_per_precision: int,
    window: int,
    threshold: float,
    backward: Bits,
    reset: bool = False,
    find_upper: bool = False,
    stop_early: bool = False,
    name: str = "metric",
    progress: Callable[[object], object] | None = None,
) -> RangeTest:
    """`precision_range_test` by the paper's criterion, with the layers' precision at b bits."""
    low, high = bit_range
    check_range(low, high)
    check_lengths(steps_per_precision, window)
    if find_upper and stop_early:
        raise ValueError("find_upper tests beyond the lower bound: drop stop_early")
    trainer = _Trainer(model, train_step, name)
    start = Snapshot(model, restore)
    history: list[tuple[int, float]] = []  # bits, metric
    began, total = time.monotonic(), (high - low + 1) * steps_per_precision
    report_every = -(-steps_per_precision // NUM_REPORTS)

    def curve() -> RangeCurve:
        bits, metric = (tuple(column) for column in zip(*history, strict=True))
        return RangeCurve(bits=bits, metric=metric, window=window, threshold=threshold, name=name)

    try:
        for each in range(high, low - 1, -1):  # raises now if a layer cannot have these bits
            set_precision(model, precision_at(each))  # type: ignore[arg-type]
        for number, bits in enumerate(range(low, high + 1)):
            if reset or (history and math.isnan(history[-1][1])):
                start.restore()
            set_precision(model, precision_at(bits))  # type: ignore[arg-type]
            before = number * steps_per_precision
            for step in range(steps_per_precision):
                clock, is_last = step if reset else before + step, step + 1 == steps_per_precision
                history.append((bits, trainer.step(clock, is_last=is_last)))
                has_ended = is_last or math.isnan(history[-1][1])
                if progress and (has_ended or (step + 1) % report_every == 0):
                    done = before + steps_per_precision if has_ended else before + step + 1
                    pace = (time.monotonic() - began) / len(history)
                    mean = curve().window_means()[-1]
                    progress(RangeProgress(bits, done, total, name, mean, pace * (total - done)))
                if has_ended:
                    break
            if stop_early and curve().passes(bits):
                break
    finally:
        start.restore()
    return _make_result(curve(), high, backward=backward, reset=reset, find_upper=find_upper)


def _make_result(
    curve: RangeCurve, high: int, *, backward: Bits, reset: bool, find_upper: bool
) -> RangeTest:
    low, upper = curve.first_passing, curve.upper_bound
    if low is None or upper is None:
        first, last = curve.precisions[0], curve.precisions[-1]
        raise RangeTestError(
            f"the model does not learn at {first} to {last} bits (errors: {bits_text(backward)}): "
            f"no gain in {curve.name} exceeds {curve.threshold:g}\n\n{curve}\n\n"
            f"{_advice(curve, reset)}",
            curve,
        )
    return RangeTest(
        low=low, high=upper if find_upper else high, curve=curve, backward=backward, reset=reset
    )


def _advice(curve: RangeCurve, reset: bool) -> str:
    whole = curve.end(curve.precisions[-1]) - curve.start(curve.precisions[0])
    if whole > curve.threshold and not reset:
        return (
            f"Over all precisions the gain is {whole:.4g}: the model learns, but not within one "
            "precision. Use more steps per precision, a lower threshold, or start every precision "
            "from the same state (reset=True)"
        )
    if curve.end(curve.precisions[0]) - curve.metric[0] > curve.threshold:
        return (
            f"The model already learns within the first window of {curve.window} steps. Use a "
            "shorter window and fewer steps per precision"
        )
    return (
        "Use more steps per precision, a lower threshold or more bits. If the model does not "
        "learn in float32 either, check the learning rate and the data"
    )


# -- relative criterion ---------------------------------------------------------------------------


def run_relative_test(
    model: nn.Module,
    train_step: TrainStep,
    precision_at: Callable[[int], Precision | dict[str, Precision]],
    *,
    restore: Iterable[Stateful] = (),
    bit_range: tuple[int, int],
    steps_per_precision: int,
    window: int,
    share: float = SHARE,
    repeats: int = REPEATS,
    backward: Bits,
    name: str = "loss",
    higher_is_better: bool = False,
    rewind: Callable[[int], object] | None = None,
    progress: Callable[[object], object] | None = None,
) -> RangeTest:
    """`precision_range_test` by the relative criterion, with the layers' precision at b bits."""
    low, high = bit_range
    check_range(low, high)
    check_lengths(steps_per_precision, window)
    if repeats < 1:
        raise ValueError(f"repeats ({repeats}) must be at least 1")
    trainer = _Trainer(model, train_step, name)
    start = Snapshot(model, restore)
    curve = RelativeCurve(
        runs=(), window=window, share=share, name=name, higher_is_better=higher_is_better
    )

    def train(repeat: int, bits: int) -> PrecisionRun:
        start.restore()
        if repeat > 0:
            _seed_repeat(repeat)
        if rewind is not None:
            rewind(repeat)
        set_precision(model, precision_at(bits))  # type: ignore[arg-type]
        metric: list[float] = []
        for step in range(steps_per_precision):
            clock, is_last = repeat * steps_per_precision + step, step + 1 == steps_per_precision
            metric.append(trainer.step(clock, is_last=is_last))
            if math.isnan(metric[-1]):
                break
        return PrecisionRun(repeat, bits, tuple(metric))

    try:
        for each in range(high, low - 1, -1):  # raises now if a layer cannot have these bits
            set_precision(model, precision_at(each))  # type: ignore[arg-type]
        for repeat in range(repeats):
            if repeat >= MIN_REPEATS and curve.is_decided(low):
                break
            bound = curve.lower_bound
            for bits in range(high, low - 1, -1):
                if bits == high or _is_needed(curve, bits, bound):
                    began = time.monotonic()
                    run = train(repeat, bits)
                    curve = replace(curve, runs=(*curve.runs, run))
                    if progress:
                        progress(RelativeProgress(run, window, name, time.monotonic() - began))
                    if bits == high and (repeat == 0 or curve.lower_bound is None):
                        _check_top(curve, steps_per_precision)
                if curve.decision(bits) == "fails":
                    break
    finally:
        start.restore()
        if rewind is not None:
            rewind(0)
    _check_top(curve, steps_per_precision)
    bound = curve.lower_bound
    assert bound is not None  # the most bits pass
    return RangeTest(
        low=bound, high=high, curve=curve, backward=backward, reset=True,
        rewinds_data=rewind is not None,
    )  # fmt: skip


def _is_needed(curve: RelativeCurve, bits: int, bound: int | None) -> bool:
    """Whether a repeat tests these bits: the lower bound, the bits below it, and what is open.

    curve: with all runs so far. bound: the lower bound before this repeat.
    """
    if bits not in curve.precisions or curve.decision(bits) == "open":
        return True
    return bound is not None and bits in (bound, bound - 1)


def _seed_repeat(repeat: int) -> None:
    """Seed the generators from their present state and the number of the repeat."""
    base = int(torch.randint(2**31, ()))
    seed = hash_ints(base, repeat) % 2**32
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def _check_top(curve: RelativeCurve, steps_per_precision: int) -> None:
    """Raise unless the model learned at the most bits."""
    high, name = curve.high, curve.name
    drop, error = curve.drop(high), curve.drop_error(high)
    if math.isnan(drop):
        raise RangeTestError(
            f"training diverges at {high} bits, the most bits of the test: there is nothing to "
            "compare fewer bits with. Test with more bits or a lower learning rate",
            curve,
        )
    if not curve.is_within_noise:
        return
    is_wrong = drop < 0
    moved = "rose" if curve.higher_is_better != is_wrong else "fell"
    what = f"the {name} {moved} by {abs(drop):.3g} ± {error:.2g} in {steps_per_precision} steps"
    if -drop > NOISE * error:
        other = "loss" if curve.higher_is_better else "accuracy"
        raise RangeTestError(
            f"{what} at {high} bits. If train_step returns a number that "
            f'{"falls" if curve.higher_is_better else "rises"}, pass metric="{other}"; otherwise '
            "the model does not learn: check the learning rate and the data, or use more steps per "
            "precision",
            curve,
        )
    raise RangeTestError(
        f"{what} at {high} bits, which is within noise (two standard errors): there is nothing to "
        f"compare fewer bits with. Use more steps per precision, such as {4 * steps_per_precision}",
        curve,
    )


# -- training -------------------------------------------------------------------------------------


class _Trainer:
    """Takes steps of the caller's loop and returns NaN where training diverged."""

    def __init__(self, model: nn.Module, train_step: TrainStep, name: str) -> None:
        named = quantized_layers(model)
        self._model, self._train_step, self._name = model, train_step, name
        self._layers = [layer for _, layer in named]
        self._health = NonFiniteCheck([entry.name for entry, _ in named], self._layers)
        self._first_clock = self._layers[0].shared.step

    def step(self, number: int, *, is_last: bool) -> float:
        """The metric of one step, averaged over processes; NaN if the model diverged."""
        expected = [layer.precision for layer in self._layers]
        advance_clocks(self._layers, self._first_clock + number)
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
    """The bounds of a test, and the curve that they come from.

    low: the fewest bits that pass. high: the most bits tested, or with `find_upper` the upper
    bound. reset: whether every precision started from the same state. rewinds_data: whether the
    test rewound the data too.
    """

    low: int
    high: int
    curve: RelativeCurve | RangeCurve
    backward: Bits
    reset: bool
    rewinds_data: bool = False

    @property
    def criterion(self) -> str:
        """`relative` or `paper`."""
        return self.curve.criterion

    @property
    def threshold(self) -> float:
        """The gain, or drop of the loss, that bits need to pass."""
        return self.curve.threshold

    def schedule(self, name: str = "CR", *, cycles: int = DEFAULT_CYCLES) -> Schedule:
        """The named cyclic schedule between the bounds."""
        return schedule(name, low=self.low, high=self.high, cycles=cycles)

    def __str__(self) -> str:
        bounds = f"lower bound {self.low}, upper bound {self.high}"
        return "\n".join([f"{self.curve}\n", *(f"note: {each}" for each in self.notes), bounds])

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know to judge the bound; one line each."""
        curve, found = self.curve, []
        if isinstance(curve, RelativeCurve):
            near = [str(b) for b in curve.precisions if curve.decision(b) == "open"]
            if near:
                found.append(f"{' and '.join(near)} bits are within noise: more repeats would tell")
            if not self.rewinds_data:
                found.append("only what `restore` covers was rewound before each precision")
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of JSON types."""
        return {
            "criterion": self.criterion,
            "low": self.low,
            "high": self.high,
            "backward": self.backward.name if isinstance(self.backward, Format) else self.backward,
            "reset": self.reset,
            "rewinds_data": self.rewinds_data,
            "curve": self.curve.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RangeTest:
        """Return the test that `to_dict` describes."""
        kept = {key: data[key] for key in ("low", "high", "reset")}
        kept["backward"] = check_bits(data["backward"], "backward")
        rewinds = bool(data.get("rewinds_data", False))  # not in files of 0.1
        return cls(**kept, rewinds_data=rewinds, curve=curve_from_dict(data["curve"]))


class RangeTestError(ArithmeticError):
    """The model learned at none of the tested bits; `curve` has the metrics."""

    def __init__(self, message: str, curve: RelativeCurve | RangeCurve) -> None:
        super().__init__(message, curve)  # both, since an exception is pickled with its args
        self.curve = curve

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True)
class RangeProgress:
    """The state of a test by the paper's criterion; `str()` is one line, for `progress=print`."""

    bits: int
    step: int  # steps so far, over all precisions
    total_steps: int  # at most
    name: str
    metric: float  # mean over the last window
    seconds_left: float  # at most

    def __str__(self) -> str:
        value = "not finite" if math.isnan(self.metric) else f"{self.metric:.4g}"
        return (
            f"range test  {self.bits} bits  step {self.step}/{self.total_steps}  "
            f"{self.name} {value}  at most {self.seconds_left:.0f} s left"
        )


@dataclass(frozen=True)
class RelativeProgress:
    """One precision of a test by the relative criterion; `str()` is one line."""

    run: PrecisionRun
    window: int
    name: str
    seconds: float

    def __str__(self) -> str:
        run, last = self.run, self.run.metric[-self.window :]
        ends = f"{_mean(run.metric[: self.window])} -> {_mean(last)}" if run.is_finite else "NaN"
        return (
            f"range test  repeat {run.repeat + 1}  {run.bits} bits  {self.name} {ends}  "
            f"{len(run.metric)} steps in {self.seconds:.1f} s"
        )


def _mean(values: tuple[float, ...]) -> str:
    return f"{math.fsum(values) / len(values):.4g}"
