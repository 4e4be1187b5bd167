"""What a study would train: its runs, their BitOPs, and the time at the pace of a measured step."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from bitcycle.analysis.cost import price
from bitcycle.analysis.subject import subject_of
from bitcycle.study.results import MethodResult, RunState, StudyResult
from bitcycle.study.study import Method
from bitcycle.tables import text_table
from bitcycle.train.config import RunConfig
from bitcycle.train.config_file import to_dict
from bitcycle.train.loop import optimizer_step, remaining_steps
from bitcycle.train.progress import duration
from bitcycle.train.session import build_session, preserve_torch_settings
from bitcycle.warnings import BitcycleWarning

WARM_UP, MEASURED = 2, 3


def measure_step(config: RunConfig) -> tuple[float, int]:
    """(seconds of a step, steps of the run): the median of three after a warm-up of two."""
    quiet = replace(config, tracking=replace(config.tracking, tensorboard=False))
    with preserve_torch_settings(), warnings.catch_warnings():
        warnings.simplefilter("ignore", BitcycleWarning)  # the run itself will say it
        session = build_session(quiet)
        times: list[float] = []
        with closing(remaining_steps(session, is_endless=True)) as steps:
            for micro_batches, _ in zip(steps, range(WARM_UP + MEASURED), strict=False):
                began = time.perf_counter()
                optimizer_step(session, micro_batches, checks_loss=False)
                times.append(time.perf_counter() - began)
    return median(times[WARM_UP:] or times), session.total_steps


def step_kind(config: RunConfig) -> str:
    """Equal for configurations whose steps take about the same: the bits themselves do not count.

    >>> from bitcycle.recipes import recipe
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


Measure = Callable[[RunConfig], tuple[float, int]]


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One run: None for what cannot be told before it."""

    label: str
    run: RunState
    steps: int | None
    bitops: int | None
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """The runs to train, in order, and what remains unknown; `str()` is the page."""

    runs: tuple[PlannedRun, ...]
    num_done: int
    num_failed: int
    num_jobs: int
    notes: tuple[str, ...]

    @property
    def bitops(self) -> int:
        """Of all runs to train, as far as it is known."""
        return sum(run.bitops or 0 for run in self.runs)

    @property
    def seconds(self) -> float:
        """At `num_jobs` runs at a time, as far as it is known."""
        times = [run.seconds or 0.0 for run in self.runs]
        return max(sum(times) / self.num_jobs, max(times, default=0.0))

    def __str__(self) -> str:
        rows = [
            (run.label, str(run.run.run.seed), run.run.state, _or_dash(run.steps, ","),
             _or_dash(run.bitops, ".4g"), duration(run.seconds), run.run.directory.name)
            for run in self.runs
        ]  # fmt: skip
        header = ("method", "seed", "state", "steps", "BitOPs", "time", "folder")
        table = [text_table(header, rows, right=(1, 3, 4, 5)), ""] if rows else []
        return "\n".join([*table, self._total(), *(f"note: {note}" for note in self.notes)])

    def _total(self) -> str:
        but = [
            f"{number} without {what}"
            for number, what in (
                (sum(run.bitops is None for run in self.runs), "BitOPs"),
                (sum(run.seconds is None for run in self.runs), "time"),
            )
            if number
        ]
        rest = f" ({', '.join(but)})" if but else ""
        failed = f", {self.num_failed} failed" if self.num_failed else ""
        return (
            f"to train: {len(self.runs)} runs, {self.bitops:.4g} BitOPs, about "
            f"{duration(self.seconds)} of training steps, {self.num_jobs} at a time{rest}; "
            f"done: {self.num_done}{failed}"
        )


def dry_run(
    result: StudyResult,
    todo: Sequence[RunState],
    *,
    num_jobs: int,
    measure: Measure | None = measure_step,
) -> DryRun:
    """Price and time what is to be trained; with `measure=None` no step is taken."""
    notes: dict[str, None] = {}
    timer = _Timer(result, measure, notes)
    methods = {state.run.method.key: state.run.method for state in todo}
    costs = {key: _bitops(method, notes) for key, method in methods.items()}
    runs = []
    for state in todo:
        seconds, steps = timer.of(state)
        runs.append(
            PlannedRun(
                label=state.run.method.key,
                run=state,
                steps=steps,
                bitops=costs[state.run.method.key],
                seconds=seconds,
            )
        )
    every = {s.directory: s.state for row in result.methods for s in row.runs}
    chosen = {state.directory for state in todo}
    return DryRun(
        runs=tuple(runs),
        num_done=sum(state == "done" for state in every.values()),
        num_failed=sum(s == "failed" for path, s in every.items() if path not in chosen),
        num_jobs=num_jobs,
        notes=tuple(notes),
    )


def _bitops(method: Method, notes: dict[str, None]) -> int | None:
    """Of one run, counted without data; None where only the run itself can tell."""
    config = method.config
    if config.precision.auto_high is not None:
        low = config.range_test.low
        filled: Any = config.precision.schedule_texts(auto=low)["forward"]
        config = replace(config, precision=replace(config.precision, forward=filled))
        notes[f"{method.key}: counted from {low} bits, the run finds its own lower end"] = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BitcycleWarning)  # the run itself will say it
            priced = price(subject_of(config))
    except ValueError as error:
        notes[f"{method.key}: no BitOPs, {error}"] = None
        return None
    for note in priced.notes:
        notes[f"{method.key}: {note}"] = None
    return int(priced.cost.bitops)


class _Timer:
    """Seconds and steps of a run: from finished runs of its method, else from a measured step."""

    def __init__(
        self, result: StudyResult, measure: Measure | None, notes: dict[str, None]
    ) -> None:
        self._rows: dict[str, MethodResult] = {row.method.key: row for row in result.methods}
        self._measure, self._notes = measure, notes
        self._measured: dict[str, tuple[float, int] | None] = {}

    def of(self, state: RunState) -> tuple[float | None, int | None]:
        done = list(self._rows[state.run.method.key].results.values())
        if done:
            return sum(run.seconds for run in done) / len(done), done[0].steps
        config = state.run.config
        kind = step_kind(config)
        if kind not in self._measured:
            self._measured[kind] = self._try(config)
        measured = self._measured[kind]
        if measured is None:
            return None, config.steps
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


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"
