"""The settings, the curve and the two criteria of the precision range test.

A criterion is a function of a curve. `judge_relative` compares what training gains at fewer bits
with what it gains at the most bits. `judge_paper` compares it with a threshold, as in CPT
(ICLR 2021). `range_test.py` trains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from statistics import fmean, stdev, variance
from typing import Any, Literal

from bitcycle.schedules.base import check_range
from bitcycle.tables import text_table

Criterion = Literal["relative", "paper"]
SHARE = 0.9  # of the gain at the most bits: what a precision must reach by default
REPEATS = 3
WINDOWS = 4  # by default a window is a quarter of the steps per precision
NOISE = 2  # standard errors within which a difference counts as noise


def _setting(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, kw_only=True)
class RangeTestConfig:
    """The settings of a range test; None stands for the default that the text names.

    They are `range_test` of a run, the options of `bitcycle range-test` and the parameters of
    `precision_range_test`. The texts are the help of the command.
    """

    criterion: Criterion | None = _setting(
        None,
        "relative: a share of the gain at the highest precision; paper: a gain above a threshold, "
        "at rising bits, as in CPT (default: paper with a threshold, else relative)",
    )
    low: int = _setting(2, "lowest precision (default 2)")
    high: int | None = _setting(None, "highest precision (default: that of the schedule)")
    steps_per_precision: int | None = _setting(
        None,
        "default: 20 to 100, where the test takes 2 %% of the run; paper: a cycle of the schedule "
        "/ number of precisions, at least 100",
    )
    window: int | None = _setting(None, "steps per mean (default: a quarter of the steps)")
    share: float = _setting(SHARE, f"relative: share that passes (default {SHARE})")
    repeats: int = _setting(REPEATS, f"relative: repeats at most (default {REPEATS})")
    threshold: float | None = _setting(
        None, "paper: gain above which a precision passes (default for accuracies: 2 x chance)"
    )

    def __post_init__(self) -> None:
        try:
            self._check()
        except ValueError as error:
            raise ValueError(f"range test: {error}") from None

    def _check(self) -> None:
        if self.criterion not in (None, "relative", "paper"):
            raise ValueError(f"criterion ({self.criterion!r}) must be 'relative' or 'paper'")
        if self.threshold is not None and not self.is_paper:
            raise ValueError(
                f"threshold ({self.threshold}) is for criterion paper, not for relative"
            )
        if self.is_paper and (self.share, self.repeats) != (SHARE, REPEATS):
            raise ValueError(
                f"share ({self.share}) and repeats ({self.repeats}) are for criterion relative, "
                "not for paper"
            )
        check_range(self.low, self.low if self.high is None else self.high)
        if not 0 < self.share <= 1:
            raise ValueError(f"share ({self.share}) must be greater than 0 and at most 1")
        if self.repeats < 1:
            raise ValueError(f"repeats ({self.repeats}) must be at least 1")
        if self.threshold is not None and not 0 <= self.threshold < math.inf:
            raise ValueError(f"threshold ({self.threshold}) must be a number of at least 0")
        if self.window is not None and self.window < self._least_window:
            raise ValueError(f"window ({self.window}) must be at least {self._least_window} steps")
        window = self._least_window if self.window is None else self.window
        if self.steps_per_precision is not None and self.steps_per_precision < 2 * window:
            raise ValueError(
                f"steps_per_precision ({self.steps_per_precision}) must be at least 2 x window "
                f"({window})"
            )

    @property
    def is_paper(self) -> bool:
        """Whether the criterion is the paper's: as given, else if there is a threshold."""
        return self.criterion == "paper" or (self.criterion is None and self.threshold is not None)

    @property
    def _least_window(self) -> int:
        return 1 if self.is_paper else 2  # the relative criterion estimates noise from a window

    def complete(
        self, *, high: int, steps_per_precision: int, threshold: float | None = None
    ) -> RangeTestConfig:
        """A copy in which these, and a quarter of the steps as window, replace what is None."""
        steps = self.steps_per_precision or steps_per_precision
        return replace(
            self,
            criterion="paper" if self.is_paper else "relative",
            high=self.high or high,
            steps_per_precision=steps,
            window=self.window or max(self._least_window, steps // WINDOWS),
            threshold=threshold if self.threshold is None else self.threshold,
        )


# -- curves ---------------------------------------------------------------------------------------


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
class Verdict:
    """What a criterion says about one precision; the numbers are NaN if training diverged.

    start, end: means of the metric over a window. gain: how far the metric improved between them.
    share: of the gain at the most bits. error, share_error: standard errors of gain and share.
    is_clear: whether the decision is not within noise.
    """

    passes: bool
    is_clear: bool = True
    start: float = math.nan
    end: float = math.nan
    gain: float = math.nan
    error: float = math.nan
    share: float = math.nan
    share_error: float = math.nan


@dataclass(frozen=True, kw_only=True)
class RangeCurve:
    """The metric of every step of a test. settings: complete. name: of the metric.

    >>> runs = [PrecisionRun(0, 8, (4.0, 4.0, 2.0, 2.0)), PrecisionRun(0, 3, (4.0, 4.0, 2.5, 2.5)),
    ...         PrecisionRun(0, 2, (4.0, 4.0, 3.5, 3.5))]
    >>> settings = RangeTestConfig(share=0.5).complete(high=8, steps_per_precision=4)
    >>> curve = RangeCurve(settings=settings, runs=tuple(runs))
    >>> [curve.verdicts[bits].gain for bits in (8, 3, 2)], curve.lower_bound
    ([2.0, 1.5, 0.5], 3)
    """

    settings: RangeTestConfig
    runs: tuple[PrecisionRun, ...]
    name: str = "loss"
    higher_is_better: bool = False

    def __post_init__(self) -> None:
        if len({(run.repeat, run.bits) for run in self.runs}) < len(self.runs):
            raise ValueError("a curve has at most one run per repeat and precision")

    @property
    def window(self) -> int:
        """Steps per mean."""
        assert self.settings.window is not None
        return self.settings.window

    @property
    def precisions(self) -> tuple[int, ...]:
        """The bits that were tested, rising."""
        return tuple(sorted({run.bits for run in self.runs}))

    @property
    def num_steps(self) -> int:
        """Optimizer steps of all runs."""
        return sum(len(run.metric) for run in self.runs)

    def runs_at(self, bits: int) -> tuple[PrecisionRun, ...]:
        """The runs at these bits, one per repeat that tested them."""
        return tuple(run for run in self.runs if run.bits == bits)

    def losses(self, run: PrecisionRun) -> list[float]:
        """The metric of a run as numbers that fall when the model learns."""
        return [-value if self.higher_is_better else value for value in run.metric]

    def start(self, run: PrecisionRun) -> float:
        """The mean metric of the first window."""
        return fmean(run.metric[: self.window])

    def end(self, run: PrecisionRun) -> float:
        """The mean metric of the last window."""
        return fmean(run.metric[-self.window :])

    @cached_property
    def _judgement(self) -> tuple[int | None, dict[int, Verdict]]:
        return judge_paper(self) if self.settings.is_paper else judge_relative(self)

    @property
    def lower_bound(self) -> int | None:
        """The lowest precision that passes by the criterion; None if no precision does."""
        return self._judgement[0]

    @property
    def verdicts(self) -> dict[int, Verdict]:
        """What the criterion says about each precision."""
        return self._judgement[1]

    def decision(self, bits: int) -> Literal["passes", "fails", "open"]:
        """`open` if these bits were not tested or the verdict is within noise."""
        verdict = self.verdicts.get(bits)
        if verdict is None or not verdict.is_clear:
            return "open"
        return "passes" if verdict.passes else "fails"

    def __str__(self) -> str:
        settings, end = self.settings, f"end {self.name}"
        if settings.is_paper:
            header = ["bits", "start", end, "gain", f"gain > {settings.threshold:g}"]
        else:
            share = f"share of {self.precisions[-1]} bits'"
            header = ["bits", "repeats", end, "gain", share, f"share >= {settings.share:g}"]
        rows = []
        for bits, found in self.verdicts.items():
            numbers = [_text(found.start), _text(found.end), _text(found.gain)]
            if not settings.is_paper:
                numbers = [
                    str(len(self.runs_at(bits))),
                    _text(found.end),
                    f"{_text(found.gain)} ± {_text(found.error)}",
                    f"{_text(found.share, 2)} ± {_text(found.share_error, 2)}",
                ]
            rows.append([str(bits), *numbers, self._answer(bits)])
        return text_table(header, rows, right=range(len(header) - 1))

    def _answer(self, bits: int) -> str:
        verdict, low = self.verdicts[bits], self.lower_bound
        if math.isnan(verdict.gain):
            return "no: NaN or infinity"
        answer = "yes: lower bound" if bits == low else "no"
        if low is not None and bits > low:
            answer = "not needed"
        return answer if verdict.is_clear else f"{answer}, within noise"

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of JSON types, with None for NaN."""
        verdicts = {str(bits): asdict(verdict) for bits, verdict in self.verdicts.items()}
        return {
            "settings": asdict(self.settings),
            "name": self.name,
            "higher_is_better": self.higher_is_better,
            "runs": [
                {"repeat": run.repeat, "bits": run.bits, "metric": [*map(_plain, run.metric)]}
                for run in self.runs
            ],
            "verdicts": {
                bits: {name: _plain(value) for name, value in verdict.items()}
                for bits, verdict in verdicts.items()
            },
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RangeCurve:
        """Return the curve that `to_dict` describes."""
        runs = (
            PrecisionRun(
                run["repeat"],
                run["bits"],
                tuple(math.nan if value is None else value for value in run["metric"]),
            )
            for run in data["runs"]
        )
        return cls(
            settings=RangeTestConfig(**data["settings"]),
            runs=tuple(runs),
            name=data["name"],
            higher_is_better=data["higher_is_better"],
        )


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _text(value: float, digits: int = 3) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


# -- criteria -------------------------------------------------------------------------------------


def judge_relative(curve: RangeCurve) -> tuple[int | None, dict[int, Verdict]]:
    """The relative criterion: trainings of equal length from one start, at falling bits.

    gain(b) = mean(loss over the first window at the most bits)
            - mean(loss over the last window at b bits)

    b passes if gain(b) >= share x gain(most bits). The lower bound is the fewest bits that pass
    such that all higher ones pass too. Gains are means over the repeats. A verdict within two
    standard errors is not clear: more repeats or steps may change it. Bits at which training
    diverged fail.
    """
    if not curve.runs:
        return None, {}
    high, window = curve.precisions[-1], curve.window
    tops = {run.repeat: run for run in curve.runs_at(high)}
    verdicts = {}
    for bits in curve.precisions:
        runs = curve.runs_at(bits)
        if not all(run.is_finite and tops[run.repeat].is_finite for run in runs):
            verdicts[bits] = Verdict(passes=False)
            continue
        pairs = [(curve.losses(run), curve.losses(tops[run.repeat])) for run in runs]
        gain, error = _difference(pairs, 0.0, window)
        margin, margin_error = _difference(pairs, curve.settings.share, window)
        top_gain, _ = _difference([(top, top) for _, top in pairs], 0.0, window)
        share, share_error = math.nan, math.nan
        if top_gain:
            share = gain / top_gain
            share_error = _difference(pairs, share, window)[1] / abs(top_gain)
        verdicts[bits] = Verdict(
            passes=margin >= 0,
            is_clear=abs(margin) >= NOISE * margin_error,
            start=fmean(curve.start(tops[run.repeat]) for run in runs),
            end=fmean(map(curve.end, runs)),
            gain=gain,
            error=error,
            share=share,
            share_error=share_error,
        )
    low = None
    for bits in reversed(curve.precisions):
        if not verdicts[bits].passes:
            break
        low = bits
    return low, verdicts


def _difference(
    pairs: Sequence[tuple[Sequence[float], Sequence[float]]], share: float, window: int
) -> tuple[float, float]:
    """The mean over repeats of gain(b) - share x gain(most bits), and its standard error.

    pairs: the losses at b bits and at the most bits in each repeat. The standard error is the
    larger of two estimates: from the losses within the windows, and from the spread over repeats.
    """
    values, variances = [], []
    for own, top in pairs:
        first = [(1 - share) * loss for loss in top[:window]]
        # step by step, since precisions that saw the same batches vary together
        last = [share * a - b for a, b in zip(top[-window:], own[-window:], strict=True)]
        values.append(fmean(first) + fmean(last))
        variances.append((variance(first) + variance(last)) / window)
    within = math.sqrt(fmean(variances))
    between = stdev(values) if len(values) > 1 else 0.0
    return fmean(values), max(within, between) / math.sqrt(len(values))


def judge_paper(curve: RangeCurve) -> tuple[int | None, dict[int, Verdict]]:
    """The paper's criterion: one training at rising bits.

    gain(b) = mean(metric over the last window at b bits)
            - mean(metric over the first window at b bits)

    b passes if gain(b) > threshold. The lower bound is the first b that passes. The gain of a loss
    is its fall. Bits at which training diverged fail.
    """
    threshold = curve.settings.threshold
    assert threshold is not None
    verdicts = {}
    for run in sorted(curve.runs, key=lambda run: run.bits):
        if not run.is_finite:
            verdicts[run.bits] = Verdict(passes=False)
            continue
        start, end = curve.start(run), curve.end(run)
        gain = end - start if curve.higher_is_better else start - end
        verdicts[run.bits] = Verdict(passes=gain > threshold, start=start, end=end, gain=gain)
    low = next((bits for bits, verdict in verdicts.items() if verdict.passes), None)
    return low, verdicts
