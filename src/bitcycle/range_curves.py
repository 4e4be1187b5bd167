"""What a precision range test measured, and the lower bound that follows by each criterion.

`RelativeCurve` compares what training at fewer bits gains with what it gains at the most bits.
`RangeCurve` compares the gain with a fixed threshold, as in CPT (ICLR 2021).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev, variance
from typing import Any, ClassVar, Literal

from bitcycle.tables import text_table

Criterion = Literal["relative", "paper"]
Decision = Literal["passes", "fails", "open"]
NOISE = 2  # standard errors within which a difference counts as noise
SHARE = 0.9  # of the drop at the most bits: what a precision must reach by default


def curve_from_dict(data: Mapping[str, Any]) -> RelativeCurve | RangeCurve:
    """Return the curve that a `to_dict` describes; the paper's if it does not say."""
    is_relative = data.get("criterion", "paper") == "relative"
    return RelativeCurve.from_dict(data) if is_relative else RangeCurve.from_dict(data)


# -- relative criterion ---------------------------------------------------------------------------


@dataclass(frozen=True)
class PrecisionRun:
    """The metric of every step of one training at `bits`, in one repeat of the test."""

    repeat: int
    bits: int
    metric: tuple[float, ...]

    @property
    def is_finite(self) -> bool:
        """Whether the training did not diverge."""
        return all(map(math.isfinite, self.metric))


@dataclass(frozen=True, kw_only=True)
class RelativeCurve:
    """Trainings of equal length from one starting point, at falling bits, in a few repeats.

    drop(b) = L0 - mean(loss over the last `window` steps at b bits)
    L0      = mean(loss over the first `window` steps at the most bits)

    b passes if drop(b) >= share x drop(most bits). The lower bound is the fewest bits that pass
    such that all higher ones pass too. Drops are means over the repeats. For a metric that rises,
    such as an accuracy, the drop is the rise.

    The standard error of a mean over repeats is the larger of two estimates: from the losses within
    the windows, and from the spread over the repeats. A decision within two standard errors is
    open: more repeats or steps may change it. Bits at which training diverged fail.

    >>> runs = [PrecisionRun(0, 8, (4.0, 4.0, 2.0, 2.0)), PrecisionRun(0, 3, (4.0, 4.0, 2.5, 2.5)),
    ...         PrecisionRun(0, 2, (4.0, 4.0, 3.5, 3.5))]
    >>> curve = RelativeCurve(runs=tuple(runs), window=2, share=0.5)
    >>> [curve.drop(bits) for bits in (8, 3, 2)], curve.lower_bound
    ([2.0, 1.5, 0.5], 3)
    """

    runs: tuple[PrecisionRun, ...]
    window: int
    share: float = SHARE
    name: str = "loss"
    higher_is_better: bool = False
    criterion: ClassVar[str] = "relative"

    def __post_init__(self) -> None:
        if self.window < 2:
            raise ValueError(
                f"window ({self.window}) must be at least 2 steps: the noise is estimated from it"
            )
        if not 0 < self.share <= 1:
            raise ValueError(f"share ({self.share}) must be greater than 0 and at most 1")
        if len({(run.repeat, run.bits) for run in self.runs}) < len(self.runs):
            raise ValueError("a curve has at most one run per repeat and precision")

    # -- data -----------------------------------------------------------------------------------

    @property
    def precisions(self) -> tuple[int, ...]:
        """The bits that were tested, rising."""
        return tuple(sorted({run.bits for run in self.runs}))

    @property
    def high(self) -> int:
        """The most bits, which the others are compared with."""
        return self.precisions[-1]

    @property
    def num_steps(self) -> int:
        """Optimizer steps of all runs."""
        return sum(len(run.metric) for run in self.runs)

    @property
    def num_repeats(self) -> int:
        """The number of repeats."""
        return len({run.repeat for run in self.runs})

    def runs_at(self, bits: int) -> tuple[PrecisionRun, ...]:
        """The runs at these bits, one per repeat that tested them."""
        return tuple(run for run in self.runs if run.bits == bits)

    def _top(self, repeat: int) -> PrecisionRun:
        return next(run for run in self.runs_at(self.high) if run.repeat == repeat)

    def _falling(self, run: PrecisionRun) -> Sequence[float]:
        return [-value for value in run.metric] if self.higher_is_better else run.metric

    def _has_diverged(self, bits: int) -> bool:
        return not all(
            run.is_finite and self._top(run.repeat).is_finite for run in self.runs_at(bits)
        )

    # -- drops ----------------------------------------------------------------------------------

    def end(self, bits: int) -> float:
        """The mean metric over the last window at these bits; NaN if training diverged."""
        if self._has_diverged(bits):
            return math.nan
        return fmean(fmean(run.metric[-self.window :]) for run in self.runs_at(bits))

    def drop(self, bits: int) -> float:
        """How far the loss fell at these bits; NaN if training diverged."""
        return self._mean(bits, 0.0)

    def drop_error(self, bits: int) -> float:
        """The standard error of `drop`."""
        return self._error(bits, 0.0)

    def relative_drop(self, bits: int) -> float:
        """drop(b) / drop(most bits), over the repeats that tested b."""
        if self._has_diverged(bits):
            return math.nan
        top = fmean(self._value(self._top(run.repeat), 0.0) for run in self.runs_at(bits))
        return self.drop(bits) / top if top else math.nan

    def relative_drop_error(self, bits: int) -> float:
        """The standard error of drop(b) - relative_drop(b) x drop(most bits), in those drops."""
        ratio, top = self.relative_drop(bits), self.drop(self.high)
        return self._error(bits, ratio) / abs(top) if math.isfinite(ratio) and top else math.nan

    @property
    def threshold(self) -> float:
        """share x drop(most bits): the drop that bits need."""
        return self.share * self.drop(self.high)

    def _value(self, run: PrecisionRun, share: float) -> float:
        """drop(b) - share x drop(most bits) in one repeat."""
        top, own = self._falling(self._top(run.repeat)), self._falling(run)
        start, end = fmean(top[: self.window]), fmean(own[-self.window :])
        return (1 - share) * start - end + share * fmean(top[-self.window :])

    def _variance(self, run: PrecisionRun, share: float) -> float:
        """The variance of `_value` by the losses within the windows.

        Precisions that saw the same batches vary together, so differences are taken step by step.
        """
        top, own = self._falling(self._top(run.repeat)), self._falling(run)
        pairs = zip(top[-self.window :], own[-self.window :], strict=True)
        first = (1 - share) ** 2 * variance(top[: self.window])
        return (first + variance([share * a - b for a, b in pairs])) / self.window

    def _mean(self, bits: int, share: float) -> float:
        if self._has_diverged(bits):
            return math.nan
        return fmean(self._value(run, share) for run in self.runs_at(bits))

    def _error(self, bits: int, share: float) -> float:
        if self._has_diverged(bits):
            return math.nan
        runs = self.runs_at(bits)
        within = fmean(self._variance(run, share) for run in runs)
        between = stdev(self._value(run, share) for run in runs) if len(runs) > 1 else 0.0
        return max(math.sqrt(within), between) / math.sqrt(len(runs))

    # -- decisions ------------------------------------------------------------------------------

    @property
    def is_within_noise(self) -> bool:
        """Whether the loss at the most bits did not fall by more than noise."""
        return not self.drop(self.high) > NOISE * self.drop_error(self.high)

    def passes(self, bits: int) -> bool:
        """Whether drop(b) >= share x drop(most bits)."""
        return self._mean(bits, self.share) >= 0

    def decision(self, bits: int) -> Decision:
        """Whether these bits pass or fail, or `open` if the difference is within noise."""
        if self._has_diverged(bits):
            return "fails"
        if abs(self._mean(bits, self.share)) < NOISE * self._error(bits, self.share):
            return "open"
        return "passes" if self.passes(bits) else "fails"

    @property
    def lower_bound(self) -> int | None:
        """The fewest bits that pass such that all higher tested ones pass; None if none do."""
        low = None
        for bits in reversed(self.precisions):
            if not self.passes(bits):
                break
            low = bits
        return low

    def is_decided(self, low: int) -> bool:
        """Whether more repeats of a test down to `low` bits would hardly move the bound."""
        for bits in range(self.high, low - 1, -1):
            if bits not in self.precisions or self.decision(bits) == "open":
                return False
            if self.decision(bits) == "fails":
                return True
        return True

    # -- text and files -------------------------------------------------------------------------

    def __str__(self) -> str:
        rows = [
            (str(bits), str(len(self.runs_at(bits))), *self._numbers(bits), self._verdict(bits))
            for bits in self.precisions
        ]
        word = "rise" if self.higher_is_better else "drop"
        header = ("bits", "repeats", f"end {self.name}", word, f"share of {self.high} bits'",
                  f"share >= {self.share:g}")  # fmt: skip
        return text_table(header, rows, right=(0, 1, 2, 3, 4))

    def _numbers(self, bits: int) -> tuple[str, str, str]:
        if math.isnan(self.drop(bits)):
            return "-", "-", "-"
        digits = 2 if self.threshold >= 1 else 3
        drop, share = self.drop(bits), self.relative_drop(bits)
        return (
            f"{self.end(bits):.{digits}f}",
            f"{drop:.{digits}f} ± {self.drop_error(bits):.{digits}f}",
            f"{share:.2f}"
            + ("" if bits == self.high else f" ± {self.relative_drop_error(bits):.2f}"),
        )

    def _verdict(self, bits: int) -> str:
        low = self.lower_bound
        if self._has_diverged(bits):
            return "no: NaN or infinity"
        is_open = ", within noise" if self.decision(bits) == "open" else ""
        if bits == low:
            return f"yes: lower bound{is_open}"
        return f"no{is_open}" if low is None or bits < low else f"not needed{is_open}"

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of JSON types, with None for NaN: the metrics, drops and decisions."""
        of_bits = {
            "gains": self.drop,
            "errors": self.drop_error,
            "shares": self.relative_drop,
            "share_errors": self.relative_drop_error,
        }
        return {
            "criterion": "relative",
            "name": self.name,
            "higher_is_better": self.higher_is_better,
            "window": self.window,
            "share": self.share,
            "runs": [
                {"repeat": run.repeat, "bits": run.bits, "metric": [*map(_plain, run.metric)]}
                for run in self.runs
            ],
            **{
                name: {str(bits): _plain(value(bits)) for bits in self.precisions}
                for name, value in of_bits.items()
            },
            "decisions": {str(bits): self.decision(bits) for bits in self.precisions},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RelativeCurve:
        """Return the curve that `to_dict` describes."""
        runs = (
            PrecisionRun(
                run["repeat"],
                run["bits"],
                tuple(math.nan if value is None else value for value in run["metric"]),
            )
            for run in data["runs"]
        )
        keys = ("name", "higher_is_better", "window", "share")
        return cls(runs=tuple(runs), **{key: data[key] for key in keys})


# -- the paper's criterion ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RangeCurve:
    """A metric over training steps at rising bits: the paper's criterion.

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
    criterion: ClassVar[str] = "paper"

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
    def num_steps(self) -> int:
        """Optimizer steps of the test."""
        return len(self.bits)

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
        low = self.first_passing
        if bits == low:
            return "yes: lower bound"
        return "no" if low is None or bits < low else "not needed"

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
