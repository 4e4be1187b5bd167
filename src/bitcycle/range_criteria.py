"""The settings, the result and the two criteria of the precision range test.

`judge_relative` compares what training gains at fewer bits with what it gains at the most bits.
`judge_paper` compares it with a threshold, as in CPT (ICLR 2021). `range_test.py` trains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from statistics import fmean, stdev, variance
from typing import Any, Literal

from bitcycle.files import to_plain
from bitcycle.schedules import Schedule, schedule
from bitcycle.schedules.base import check_range
from bitcycle.schedules.cycle import DEFAULT_CYCLES
from bitcycle.tables import text_table

Criterion = Literal["relative", "paper"]
SHARE = 0.9  # of the gain at the most bits: what a precision must reach by default
REPEATS = 3
WINDOWS = 4  # by default a window is a quarter of the steps per precision
NOISE = 2  # standard errors within which a difference counts as noise
# bits below CAREFUL_BELOW pass only if they are as good as the most bits, over enough of the run:
# the first steps teach what any precision can learn
CAREFUL_BELOW = 4
AS_GOOD = 0.98  # share
ENOUGH = 0.1  # of the run's steps, for each training


def _setting(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, kw_only=True)
class RangeTestConfig:
    """The settings of a range test: `range_test` of a run, and the options of the command.

    The texts are the help of the command. None stands for the default that the text names.
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
    careful_below: int = _setting(
        CAREFUL_BELOW,
        f"relative: fewer bits need a share of {AS_GOOD} in trainings of a tenth of the run "
        f"(default {CAREFUL_BELOW})",
    )
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
            raise ValueError(f"threshold ({self.threshold}) is for criterion paper")
        relative = {"share": SHARE, "repeats": REPEATS, "careful_below": CAREFUL_BELOW}
        for name, default in relative.items():
            if self.is_paper and getattr(self, name) != default:
                raise ValueError(f"{name} ({getattr(self, name)}) is for criterion relative")
        check_range(self.low, self.low if self.high is None else self.high)
        if not 0 < self.share <= 1:
            raise ValueError(f"share ({self.share}) must be greater than 0 and at most 1")
        if self.repeats < 1:
            raise ValueError(f"repeats ({self.repeats}) must be at least 1")
        if self.careful_below < 1:
            raise ValueError(f"careful_below ({self.careful_below}) must be at least 1")
        if self.threshold is not None and not 0 <= self.threshold < math.inf:
            raise ValueError(f"threshold ({self.threshold}) must be a number of at least 0")
        window = self._least_window if self.window is None else self.window
        if window < self._least_window:
            raise ValueError(f"window ({window}) must be at least {self._least_window} steps")
        steps = self.steps_per_precision
        if steps is not None and steps < 2 * window:
            raise ValueError(
                f"steps_per_precision ({steps}) must be at least 2 x window ({window})"
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

    def __str__(self) -> str:
        rule = f"gain > {self.threshold:g}" if self.is_paper else f"share >= {self.share:g}"
        steps = f"{self.steps_per_precision} steps each, means over {self.window}"
        return f"{self.low} to {self.high} bits, {steps}; passes with {rule}"


# -- results --------------------------------------------------------------------------------------


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
    is_clear: whether the decision is not within noise; what is within noise does not pass. needed:
    the share that passes; infinite for few bits after trainings that are too short to tell.
    """

    passes: bool
    is_clear: bool = True
    needed: float = math.nan
    start: float = math.nan
    end: float = math.nan
    gain: float = math.nan
    error: float = math.nan
    share: float = math.nan
    share_error: float = math.nan


@dataclass(frozen=True, kw_only=True)
class RangeTest:
    """The metric of every step of a range test, and what its criterion says about them.

    >>> runs = [PrecisionRun(0, 8, (4.0, 4.0, 2.0, 2.0)), PrecisionRun(0, 5, (4.0, 4.0, 2.5, 2.5)),
    ...         PrecisionRun(0, 4, (4.0, 4.0, 3.5, 3.5))]
    >>> settings = RangeTestConfig(share=0.5).complete(high=8, steps_per_precision=4)
    >>> test = RangeTest(settings=settings, runs=tuple(runs))
    >>> [test.verdicts[bits].gain for bits in (8, 5, 4)], test.low
    ([2.0, 1.5, 0.5], 5)
    """

    settings: RangeTestConfig  # complete
    runs: tuple[PrecisionRun, ...]
    name: str = "loss"  # of the metric
    higher_is_better: bool = False
    total_steps: int | None = None  # of the run that the bound is for

    @cached_property
    def verdicts(self) -> dict[int, Verdict]:
        """What the criterion says about each precision that was tested, at rising bits."""
        return judge_paper(self) if self.settings.is_paper else judge_relative(self)

    @property
    def low(self) -> int | None:
        """The lower bound: the fewest bits that pass; None if no precision does.

        By the relative criterion all higher bits must pass too, none of them within noise.
        """
        failing = [bits for bits, verdict in self.verdicts.items() if not verdict.passes]
        above = 0 if self.settings.is_paper else max(failing, default=0)
        passing = (bits for bits in self.verdicts if bits > above and bits not in failing)
        return min(passing, default=None)

    @property
    def high(self) -> int:
        """The most bits of the test."""
        assert self.settings.high is not None
        return self.settings.high

    @property
    def window(self) -> int:
        """Steps per mean."""
        assert self.settings.window is not None
        return self.settings.window

    @property
    def num_steps(self) -> int:
        """Optimizer steps of all runs."""
        return sum(len(run.metric) for run in self.runs)

    @property
    def run_share(self) -> float | None:
        """The share of the run that one training of the test lasts; None without total_steps."""
        assert self.settings.steps_per_precision is not None
        return self.total_steps and self.settings.steps_per_precision / self.total_steps

    @property
    def basis(self) -> str:
        """What the bound rests on: the steps at each precision, and their share of the run."""
        steps = f"{self.settings.steps_per_precision} steps per precision"
        if self.run_share is None:
            return f"{steps}, of a run of unknown length (total_steps)"
        return f"{steps}, {100 * self.run_share:.2g} % of the run's {self.total_steps}"

    def runs_at(self, bits: int) -> tuple[PrecisionRun, ...]:
        """The runs at these bits, one per repeat that tested them."""
        return tuple(run for run in self.runs if run.bits == bits)

    def start(self, run: PrecisionRun) -> float:
        """The mean metric of the first window."""
        return fmean(run.metric[: self.window])

    def end(self, run: PrecisionRun) -> float:
        """The mean metric of the last window."""
        return fmean(run.metric[-self.window :])

    def decision(self, bits: int) -> Literal["passes", "fails", "open"]:
        """`open` if these bits were not tested or the verdict is within noise."""
        verdict = self.verdicts.get(bits)
        if verdict is None or not verdict.is_clear:
            return "open"
        return "passes" if verdict.passes else "fails"

    def schedule(self, name: str = "CR", *, cycles: int = DEFAULT_CYCLES) -> Schedule:
        """The named cyclic schedule from `low` to `high` bits."""
        if self.low is None:
            raise ValueError("no precision passed the range test")
        return schedule(name, low=self.low, high=self.high, cycles=cycles)

    def __str__(self) -> str:
        end = f"end {self.name}"
        if self.settings.is_paper:
            header = ["bits", "start", end, "gain", f"gain > {self.settings.threshold:g}"]
        else:
            share = f"share of {max(self.verdicts)} bits'"
            header = ["bits", "repeats", end, "gain", share, f"share >= {self.settings.share:g}"]
        table = text_table(header, map(self._row, self.verdicts), right=range(len(header) - 1))
        bound = "none" if self.low is None else f"{self.low} bits"
        lines = [f"lower bound: {bound}", f"rests on:    {self.basis}"]
        below = (self.low or 0) - 1
        if below in self.verdicts and self.decision(below) == "open":
            lines.append(f"{below} bits are within noise: more steps or repeats may let them pass")
        return "\n".join([table, "", *lines])

    def _row(self, bits: int) -> list[str]:
        found = self.verdicts[bits]
        numbers = [_text(found.start), _text(found.end), _text(found.gain)]
        if not self.settings.is_paper:
            numbers = [
                str(len(self.runs_at(bits))),
                _text(found.end),
                f"{_text(found.gain)} ± {_text(found.error)}",
                f"{_text(found.share, 2)} ± {_text(found.share_error, 2)}",
            ]
        return [str(bits), *numbers, self._answer(bits)]

    def _answer(self, bits: int) -> str:
        """The last cell of a row: whether the bits pass, and what is special about them."""
        found = self.verdicts[bits]
        if bits == self.low:
            return "yes: lower bound"
        if found.passes:
            return "yes"
        if math.isnan(found.gain):
            return "no: NaN or infinity"
        if found.needed > self.settings.share > found.share:
            return "no"
        if found.needed == math.inf:
            return "no: too few steps for so few bits"
        if found.needed > self.settings.share:
            return f"no: below {found.needed:g}" + ("" if found.is_clear else " or within noise")
        return "no" if found.is_clear else "no: within noise"

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of JSON types; NaN is the text nan."""
        verdicts = {str(bits): asdict(verdict) for bits, verdict in self.verdicts.items()}
        bounds = {"low": self.low, "high": self.high}
        return dict(to_plain({**bounds, **asdict(self), "verdicts": verdicts}))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RangeTest:
        """Return the test that `to_dict` describes."""
        runs = (
            PrecisionRun(run["repeat"], run["bits"], tuple(map(float, run["metric"])))
            for run in data["runs"]
        )
        return cls(
            settings=RangeTestConfig(**data["settings"]),
            runs=tuple(runs),
            name=data["name"],
            higher_is_better=data["higher_is_better"],
            total_steps=data.get("total_steps"),
        )


def _text(value: float, digits: int = 3) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


class RangeTestError(ArithmeticError):
    """No precision passed; `test` has the metrics."""

    def __init__(self, message: str, test: RangeTest) -> None:
        super().__init__(message, test)  # both, since an exception is pickled with its args
        self.test = test

    def __str__(self) -> str:
        return str(self.args[0])


# -- criteria -------------------------------------------------------------------------------------


def judge_relative(test: RangeTest) -> dict[int, Verdict]:
    """The relative criterion: trainings of equal length from one start, at falling bits.

    gain(b) = mean(loss over the first window at the most bits)
            - mean(loss over the last window at b bits)

    b passes if gain(b) - share x gain(most bits) is at least two standard errors above 0. Gains are
    means over the repeats. A verdict within two standard errors is not clear: more repeats or steps
    may change it. Bits at which training diverged fail. Fewer than `careful_below` bits need a
    share of AS_GOOD at least, in trainings that last a share of ENOUGH of the run.
    """

    def losses(run: PrecisionRun) -> list[float]:
        return [-value if test.higher_is_better else value for value in run.metric]

    precisions = sorted({run.bits for run in test.runs})
    tops = {run.repeat: run for run in test.runs if run.bits == precisions[-1]}
    verdicts = {}
    for bits in precisions:
        pairs = [(run, tops[run.repeat]) for run in test.runs_at(bits)]
        if not all(run.is_finite and top.is_finite for run, top in pairs):
            verdicts[bits] = Verdict(passes=False)
            continue
        pair_losses = [(losses(run), losses(top)) for run, top in pairs]
        gain, error = _difference(pair_losses, 0.0, test.window)
        needed = _needed_share(test, bits)
        margin, margin_error = _difference(pair_losses, min(needed, 1.0), test.window)
        top_gain, _ = _difference([(top, top) for _, top in pair_losses], 0.0, test.window)
        share, share_error = math.nan, math.nan
        if top_gain:
            share = gain / top_gain
            share_error = _difference(pair_losses, share, test.window)[1] / abs(top_gain)
        verdicts[bits] = Verdict(
            passes=margin >= NOISE * margin_error and needed <= 1,
            is_clear=abs(margin) >= NOISE * margin_error or needed > 1,
            needed=needed,
            start=fmean(test.start(top) for _, top in pairs),
            end=fmean(test.end(run) for run, _ in pairs),
            gain=gain,
            error=error,
            share=share,
            share_error=share_error,
        )
    return verdicts


def _needed_share(test: RangeTest, bits: int) -> float:
    """The share that lets these bits pass; infinite if the trainings are too short to tell."""
    if bits >= min(test.settings.careful_below, test.high):
        return test.settings.share
    if test.run_share is None or test.run_share < ENOUGH:
        return math.inf
    return max(test.settings.share, AS_GOOD)


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


def judge_paper(test: RangeTest) -> dict[int, Verdict]:
    """The paper's criterion: one training at rising bits.

    gain(b) = mean(metric over the last window at b bits)
            - mean(metric over the first window at b bits)

    b passes if gain(b) > threshold. The gain of a loss is its fall. Bits at which training diverged
    fail.
    """
    assert test.settings.threshold is not None
    verdicts = {}
    for run in sorted(test.runs, key=lambda run: run.bits):
        if not run.is_finite:
            verdicts[run.bits] = Verdict(passes=False)
            continue
        start, end = test.start(run), test.end(run)
        gain = end - start if test.higher_is_better else start - end
        passes = gain > test.settings.threshold
        verdicts[run.bits] = Verdict(passes=passes, start=start, end=end, gain=gain)
    return verdicts
