"""The precision range test (CPT, ICLR 2021): the fewest bits at which a model still learns.

`precision_range_test` trains for a number of steps at each bit-width and returns a `RangeTest` with
the bounds and the `RangeCurve` that they come from.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from bitcycle.model_precision import quantized_layers, set_precision
from bitcycle.nn.layer import advance_clocks
from bitcycle.nonfinite import NonFiniteCheck, NonFiniteError
from bitcycle.precision import Precision
from bitcycle.schedules import Bits, Schedule, ScheduleLike, Static, parse_schedule, schedule
from bitcycle.schedules.base import bits_text, check_range
from bitcycle.schedules.cycle import DEFAULT_CYCLES
from bitcycle.snapshot import Snapshot, Stateful
from bitcycle.tables import text_table

TrainStep = Callable[[], Any]  # one optimizer step; returns anything that float() takes
NUM_REPORTS = 5  # progress reports per precision


def precision_range_test(
    model: nn.Module,
    train_step: TrainStep,
    *,
    restore: Iterable[Stateful] = (),
    low: int = 2,
    high: int = 8,
    steps_per_precision: int,
    window: int,
    chance: float | None = None,
    threshold: float | None = None,
    backward: ScheduleLike = 8,
    reset: bool = False,
    find_upper: bool = False,
    stop_early: bool = False,
    name: str = "metric",
    progress: Callable[[RangeProgress], object] | None = None,
) -> RangeTest:
    """Train for `steps_per_precision` steps at each of low, ..., high bits, and find the bounds.

    gain(b) = mean(last `window` metrics at b bits) - mean(first `window` metrics at b bits);
    lower bound = the first b with gain(b) > threshold.

    train_step: one optimizer step of your own loop, without the PrecisionScheduler; returns a
    metric for which higher is better (accuracy; -loss). Weights and activations have b bits; the
    errors, which are the gradients with respect to a layer's output, have `backward` bits. Pass
    exactly one of `threshold` and `chance`, the accuracy of a random guess: threshold = 2 x chance.
    Training continues from precision to precision; reset=True starts each from the same state.
    find_upper: `high` of the result is the fewest bits at which one more adds less than the
    threshold. stop_early: end the test when a precision passes. A NaN (metric, weights, or a
    `NonFiniteError`) means that the bits do not pass; the next ones start from the initial state.

    Afterwards, also after an error, the model, everything in `restore` and the random generators
    are restored to the bit; the data that train_step draws is not rewound. If no bits pass, the
    test raises a `RangeTestError` with the curve. Under torch.distributed every process takes part,
    and the metric is the mean over them.
    """
    error = parse_schedule(backward)
    if not isinstance(error, Static):
        raise ValueError(f"backward ({error}) must be a number of bits or fp32 in a range test")
    return run_range_test(
        model,
        train_step,
        lambda bits: Precision(weight=bits, act=bits, error=error.bits, grad=error.bits),
        restore=restore,
        bit_range=(low, high),
        steps_per_precision=steps_per_precision,
        window=window,
        threshold=check_threshold(chance, threshold),
        backward=error.bits,
        reset=reset,
        find_upper=find_upper,
        stop_early=stop_early,
        name=name,
        progress=progress,
    )


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
    progress: Callable[[RangeProgress], object] | None = None,
) -> RangeTest:
    """`precision_range_test` with `precision_at`, the precision of the layers at b forward bits."""
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
            return float(metric)
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
    bound.
    """

    low: int
    high: int
    curve: RangeCurve
    backward: Bits
    reset: bool

    @property
    def threshold(self) -> float:
        """The gain above which bits pass."""
        return self.curve.threshold

    def schedule(self, name: str = "CR", *, cycles: int = DEFAULT_CYCLES) -> Schedule:
        """The named cyclic schedule between the bounds."""
        return schedule(name, low=self.low, high=self.high, cycles=cycles)

    def __str__(self) -> str:
        return f"{self.curve}\n\nlower bound {self.low}, upper bound {self.high}"

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of JSON types."""
        return {
            "low": self.low,
            "high": self.high,
            "backward": self.backward,
            "reset": self.reset,
            "curve": self.curve.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RangeTest:
        """Return the test that `to_dict` describes."""
        curve = RangeCurve.from_dict(data["curve"])
        return cls(**{**{k: data[k] for k in ("low", "high", "backward", "reset")}, "curve": curve})


@dataclass(frozen=True, kw_only=True)
class RangeCurve:
    """A metric over training steps at rising bits.

    gain(b) = mean(metric over the last `window` steps at b bits)
            - mean(metric over the first `window` steps at b bits)

    b passes if gain(b) > threshold. A metric that is not finite is NaN, its bits do not pass, and
    the test moves on from them at that step.

    >>> curve = RangeCurve(bits=(2, 2, 3, 3), metric=(0.1, 0.1, 0.1, 0.5), window=1, threshold=0.2)
    >>> curve.steps, curve.gain(3), curve.passes(2), curve.first_passing
    ((0, 1, 2, 3), 0.4, False, 3)
    """

    bits: tuple[int, ...]
    metric: tuple[float, ...]
    window: int
    threshold: float
    name: str = "metric"

    def __post_init__(self) -> None:
        if len(self.bits) != len(self.metric):
            raise ValueError(
                f"a curve needs as many bits ({len(self.bits)}) as metrics ({len(self.metric)})"
            )
        if list(self.bits) != sorted(self.bits):
            raise ValueError("the bits of a curve must not fall: a range test only raises them")
        if self.window < 1:
            raise ValueError(f"window ({self.window}) must be at least 1")

    @property
    def steps(self) -> tuple[int, ...]:
        """0-based training steps of the test."""
        return tuple(range(len(self.bits)))

    @property
    def precisions(self) -> tuple[int, ...]:
        """The bits that were tested, rising."""
        return tuple(dict.fromkeys(self.bits))

    def metric_at(self, bits: int) -> tuple[float, ...]:
        """The metric of every step at these bits."""
        return tuple(m for b, m in zip(self.bits, self.metric, strict=True) if b == bits)

    def start(self, bits: int) -> float:
        """The mean over the first window at these bits; NaN if any metric was not finite."""
        return self._mean(self.metric_at(bits)[: self.window], bits)

    def end(self, bits: int) -> float:
        """The mean over the last window at these bits; NaN if any metric was not finite."""
        return self._mean(self.metric_at(bits)[-self.window :], bits)

    def _mean(self, values: tuple[float, ...], bits: int) -> float:
        is_finite = bool(values) and all(math.isfinite(m) for m in self.metric_at(bits))
        return math.fsum(values) / len(values) if is_finite else math.nan

    def gain(self, bits: int) -> float:
        """How much training at these bits added to the metric; NaN if it diverged."""
        return self.end(bits) - self.start(bits)

    def passes(self, bits: int) -> bool:
        """Whether the model learns at these bits."""
        return self.gain(bits) > self.threshold

    @property
    def first_passing(self) -> int | None:
        """The lower bound: the fewest bits that pass."""
        return next((b for b in self.precisions if self.passes(b)), None)

    @property
    def upper_bound(self) -> int | None:
        """The fewest bits from the lower bound on at which one more adds less than the threshold.

        One more bit adds the rise of `end`, the mean over the last window.
        """
        low = self.first_passing
        if low is None:
            return None
        candidates = [b for b in self.precisions if b >= low]
        for bits, more in zip(candidates, candidates[1:], strict=False):
            if not self.end(more) - self.end(bits) >= self.threshold:
                return bits
        return candidates[-1]

    def window_means(self) -> tuple[float, ...]:
        """The mean over the last `window` steps at the same bits, or fewer at first, by step.

        >>> RangeCurve(bits=(2, 2, 3), metric=(1.0, 2.0, 4.0), window=2, threshold=1).window_means()
        (1.0, 1.5, 4.0)
        """
        means: list[float] = []
        for bits in self.precisions:
            values = self.metric_at(bits)
            for stop in range(1, len(values) + 1):
                last = values[max(0, stop - self.window) : stop]
                is_finite = all(math.isfinite(value) for value in last)
                means.append(math.fsum(last) / len(last) if is_finite else math.nan)
        return tuple(means)

    def __str__(self) -> str:
        rows = [
            (str(bits), str(len(self.metric_at(bits))), *self._numbers(bits), self._verdict(bits))
            for bits in self.precisions
        ]
        header = ("bits", "steps", "start", "end", "gain", f"gain > {self.threshold:g}")
        return text_table(header, rows, right=(0, 1, 2, 3, 4))

    def _numbers(self, bits: int) -> tuple[str, ...]:
        digits = 2 if self.threshold >= 1 else 4
        values = ((self.start(bits), ""), (self.end(bits), ""), (self.gain(bits), "+"))
        return tuple("-" if math.isnan(v) else f"{v:{sign}.{digits}f}" for v, sign in values)

    def _verdict(self, bits: int) -> str:
        if math.isnan(self.gain(bits)):
            return "no: NaN or infinity"
        if bits == self.first_passing:
            return "yes: lower bound"
        return "yes" if self.passes(bits) else "no"

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of JSON types, with None for NaN: the metrics, window means and gains."""
        return {
            "name": self.name,
            "window": self.window,
            "threshold": self.threshold,
            "bits": list(self.bits),
            "steps": list(self.steps),
            "metric": [_plain(value) for value in self.metric],
            "window_means": [_plain(value) for value in self.window_means()],
            "gains": {str(bits): _plain(self.gain(bits)) for bits in self.precisions},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RangeCurve:
        """Return the curve that `to_dict` describes."""
        return cls(
            bits=tuple(data["bits"]),
            metric=tuple(math.nan if value is None else value for value in data["metric"]),
            window=data["window"],
            threshold=data["threshold"],
            name=data["name"],
        )


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None


class RangeTestError(ArithmeticError):
    """The model learned at none of the tested bits; `curve` has the metrics."""

    def __init__(self, message: str, curve: RangeCurve) -> None:
        super().__init__(message, curve)  # both, since an exception is pickled with its args
        self.curve = curve

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True)
class RangeProgress:
    """The state of a running test; `str()` is one line, for `progress=print`."""

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
