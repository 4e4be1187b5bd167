"""The dry run of a study: the runs it would train, their BitOPs, and the time they would take."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

from bitcycle.tables import text_table
from bitcycle.warnings import BitcycleWarning
from bitcycle_lab.cost.run import estimate_cost
from bitcycle_lab.cost.spec import spec_from_config
from bitcycle_lab.study.number_text import bitops_texts, common_decimals, seeds_text
from bitcycle_lab.study.results import RunStatus, StudyResult, distinct_runs
from bitcycle_lab.study.statistics import half_width, num_seeds_for
from bitcycle_lab.study.study import Method
from bitcycle_lab.study.summary import summarize
from bitcycle_lab.train.config import RunConfig
from bitcycle_lab.train.config_file import to_dict
from bitcycle_lab.train.loop import optimizer_step, remaining_steps
from bitcycle_lab.train.progress import duration
from bitcycle_lab.train.session import build_session, preserve_torch_settings

Measure = Callable[[RunConfig], tuple[float, int]]  # (seconds per step, steps of the run)
NUM_WARM_UP, NUM_TIMED = 2, 3  # steps


@dataclass(frozen=True, kw_only=True)
class RunEstimate:
    """Steps, BitOPs and time of a run to train; None where they are unknown before training."""

    run: RunStatus
    steps: int | None
    bitops: int | None
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """The runs to train, in order, with notes on what is unknown. `str()` is a table."""

    runs: tuple[RunEstimate, ...]
    num_done: int
    num_failed: int
    num_jobs: int
    notes: tuple[str, ...]
    power: tuple[Power, ...] = ()

    @property
    def bitops(self) -> int:
        """Of all runs to train, as far as they are known."""
        return sum(each.bitops or 0 for each in self.runs)

    @property
    def seconds(self) -> float:
        """With `num_jobs` runs at a time, as far as it is known."""
        times = [each.seconds or 0.0 for each in self.runs]
        return max(sum(times) / self.num_jobs, max(times, default=0.0))

    def __str__(self) -> str:
        bitops = bitops_texts([each.bitops for each in self.runs])
        rows = [
            (each.run.method.key, str(each.run.seed), each.run.state, _or_dash(each.steps, ","),
             spent.removesuffix("BitOPs"), duration(each.seconds), each.run.directory.name)
            for each, spent in zip(self.runs, bitops, strict=True)
        ]  # fmt: skip
        header = ("method", "seed", "state", "steps", "BitOPs", "time", "folder")
        table = [text_table(header, rows, right=(1, 3, 4, 5)), ""] if rows else []
        unknown = {
            "BitOPs": sum(each.bitops is None for each in self.runs),
            "time": sum(each.seconds is None for each in self.runs),
        }
        without = ", ".join(
            f"{number} without {what}" for what, number in unknown.items() if number
        )
        failed = f", {self.num_failed} failed" if self.num_failed else ""
        total = (
            f"to train: {len(self.runs)} runs, {self.bitops:.4g} BitOPs, about "
            f"{duration(self.seconds)} of training steps, {self.num_jobs} at a time"
            f"{f' ({without})' if without else ''}; done: {self.num_done}{failed}"
        )
        power = ["", power_table(self.power)] if self.power else []
        return "\n".join([*table, total, *(f"note: {note}" for note in self.notes), *power])


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def measure_step(config: RunConfig) -> tuple[float, int]:
    """(seconds per step, steps of the run): the median of three steps after a warm-up of two."""
    quiet = replace(config, tracking=replace(config.tracking, tensorboard=False))
    with preserve_torch_settings(), warnings.catch_warnings():
        warnings.simplefilter("ignore", BitcycleWarning)  # the run itself will say it
        session = build_session(quiet)
        times: list[float] = []
        with closing(remaining_steps(session, is_endless=True)) as steps:
            for micro_batches, _ in zip(steps, range(NUM_WARM_UP + NUM_TIMED), strict=False):
                began = time.perf_counter()
                optimizer_step(session, micro_batches, checks_loss=False)
                times.append(time.perf_counter() - began)
    return median(times[NUM_WARM_UP:] or times), session.total_steps


def dry_run(
    result: StudyResult,
    todo: Sequence[RunStatus],
    *,
    num_jobs: int,
    measure: Measure | None = measure_step,
) -> DryRun:
    """Count the BitOPs of the runs to train and measure their time.

    With `measure=None` no step is timed: only methods with a finished run have a time.
    """
    notes: dict[str, None] = {}
    timer = _Timer(result, measure, notes)
    methods = {run.method.key: run.method for run in todo}
    bitops = {key: _bitops(method, notes) for key, method in methods.items()}
    estimates = []
    for run in todo:
        seconds, steps = timer.of(run)
        cost = bitops[run.method.key]
        estimates.append(RunEstimate(run=run, steps=steps, bitops=cost, seconds=seconds))
    chosen = {run.directory for run in todo}
    runs = distinct_runs(result)
    return DryRun(
        runs=tuple(estimates),
        num_done=sum(run.state == "done" for run in runs),
        num_failed=sum(run.state == "failed" and run.directory not in chosen for run in runs),
        num_jobs=num_jobs,
        notes=tuple(notes),
        power=study_power(result),
    )


@dataclass(frozen=True, kw_only=True)
class Power:
    """What the seeds of a group can tell from noise, before they are all trained.

    std: of the paired differences, the median over the methods with two finished seeds or more;
    None before there is one. margin: the smallest difference that matters.
    """

    group: str
    num_seeds: int
    std: float | None
    margin: float | None

    @property
    def half(self) -> float | None:
        """Half the width of the interval: in deviations if they are not known."""
        return None if self.num_seeds < 2 else half_width(self.std or 1.0, self.num_seeds)

    def cells(self, decimals: int) -> tuple[str, ...]:
        """Group, seeds, deviation, half width of the interval, and seeds that decide the margin."""
        needed = num_seeds_for(self.std, self.margin) if self.std and self.margin else None
        std, half, margin = (
            _or_dash(x, f".{decimals}f") for x in (self.std, self.half, self.margin)
        )
        unit = "" if self.std or self.half is None else " deviations"
        seeds = "-" if needed is None else seeds_text(needed)
        return self.group, str(self.num_seeds), std, f"{half}{unit}", margin, seeds


def study_power(result: StudyResult) -> tuple[Power, ...]:
    """The power of every group with a baseline."""
    found = []
    for group in summarize(result):
        if group.baseline is None or len(group.methods) < 2:
            continue
        counts = {row.label: len(row.result.runs) for row in group.methods}
        n = min(counts.pop(group.baseline, 0), max(counts.values(), default=0))  # paired by seed
        known = [each.difference.std for each in group.compared if each.difference.std]  # type: ignore[union-attr]
        std = median(known) if known else None
        found.append(Power(group=group.group, num_seeds=n, std=std, margin=group.margin))
    return tuple(found)


def power_table(rows: Sequence[Power]) -> str:
    """The differences to the baseline that the seeds can tell from noise."""
    header = ("group", "seeds", "deviation", "tells from noise", "margin", "seeds for margin")
    decimals = max(0, common_decimals(x for row in rows for x in (row.std, row.half, row.margin)))
    return text_table(header, [row.cells(decimals) for row in rows], right=(1, 2, 3, 4, 5))


def _bitops(method: Method, notes: dict[str, None]) -> int | None:
    """The BitOPs of one run, counted without data; None where only training can tell."""
    config = method.config
    if config.precision.auto_high is not None:
        low = config.range_test.low
        filled: Any = config.precision.schedule_texts(auto=low)["forward"]
        config = replace(config, precision=replace(config.precision, forward=filled))
        notes[f"{method.key}: counted from {low} bits, the run finds its own lower end"] = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BitcycleWarning)  # the run itself will say it
            priced = estimate_cost(spec_from_config(config))
    except ValueError as error:
        notes[f"{method.key}: no BitOPs, {error}"] = None
        return None
    for note in priced.notes:
        notes[f"{method.key}: {note}"] = None
    return int(priced.cost.bitops)


class _Timer:
    """Seconds and steps of a run, from finished runs of its method or from measured steps."""

    def __init__(
        self, result: StudyResult, measure: Measure | None, notes: dict[str, None]
    ) -> None:
        self._finished = {m.method.key: list(m.results.values()) for m in result.methods}
        self._measure, self._notes = measure, notes
        self._measured: dict[str, tuple[float, int] | None] = {}

    def of(self, run: RunStatus) -> tuple[float | None, int | None]:
        finished = self._finished[run.method.key]
        if finished:
            return fmean(result.seconds for result in finished), finished[0].steps
        kind = step_kind(run.config)
        if kind not in self._measured:
            self._measured[kind] = self._try(run.config)
        measured = self._measured[kind]
        if measured is None:
            return None, run.config.steps
        seconds, steps = measured
        return seconds * steps, steps

    def _try(self, config: RunConfig) -> tuple[float, int] | None:
        if self._measure is None:
            return None
        try:
            return self._measure(config)
        except (ValueError, OSError) as error:
            self._notes[f"no time, a step could not be measured: {error}"] = None
            return None


def step_kind(config: RunConfig) -> str:
    """Equal for configurations whose steps take about as long; the number of bits does not count.

    >>> from bitcycle_lab.recipes import recipe
    >>> cycled, static = recipe("digits-cpt-3-8-8"), recipe("digits-static-3-8")
    >>> step_kind(cycled) == step_kind(static), step_kind(static) == step_kind(
    ...     recipe("digits-float32")
    ... )
    (True, False)
    """
    settings: dict[str, Any] = to_dict(config)
    precision = settings["precision"]
    kept = ("task", "model", "data", "accumulate", "autocast", "channels_last", "threads",
            "steps", "epochs")  # fmt: skip
    rules = None
    if not config.precision.is_float:
        rules = [precision[key] for key in ("quantizer", "quantizer_options", "skip", "only",
                                            "kernel")]  # fmt: skip
    return repr(([settings[key] for key in kept], settings["optimizer"]["name"], rules))
