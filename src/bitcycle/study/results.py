"""A study with its runs: what each one's state is, and the values of those that are done."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bitcycle.study.base import Method, Study, StudyRun
from bitcycle.study.failures import read_failures
from bitcycle.train.directory import RunDirectory
from bitcycle.train.result import RunResult

State = Literal["done", "failed", "started", "missing"]


@dataclass(frozen=True, kw_only=True)
class RunState:
    """Where one run stands. started: it has a folder and no result (interrupted, or running)."""

    run: StudyRun
    directory: Path
    state: State
    result: RunResult | None = None
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class MethodResult:
    """One method over its seeds."""

    method: Method
    runs: tuple[RunState, ...]

    @property
    def results(self) -> dict[int, RunResult]:
        """Of the runs that are done, by seed."""
        return {run.run.seed: run.result for run in self.runs if run.result is not None}

    @property
    def values(self) -> dict[int, float]:
        """The final value of the metric (never the best of a run), by seed."""
        return {seed: result.value for seed, result in self.results.items()}

    @property
    def bitops(self) -> float | None:
        """Mean training cost of a run; None before one is done."""
        costs = [float(result.cost["bitops"]) for result in self.results.values()]
        return sum(costs) / len(costs) if costs else None

    def count(self, state: State) -> int:
        """How many of its runs are in that state."""
        return sum(run.state == state for run in self.runs)


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """Every method of a study, in its order, with what there is of it."""

    study: Study
    output: Path
    methods: tuple[MethodResult, ...]

    @property
    def folder(self) -> Path:
        """Where the study's own files go: tables, pictures, the page."""
        return study_folder(self.output, self.study.name)

    def of(self, group: str) -> tuple[MethodResult, ...]:
        """The methods of one group."""
        return tuple(row for row in self.methods if row.method.group == group)

    def baseline(self, group: str) -> MethodResult | None:
        """What the others of the group are compared with; None when it has none."""
        found = [row for row in self.of(group) if row.method.label == self.study.baseline]
        return found[0] if found else None

    def count(self, state: State) -> int:
        """How many runs are in that state."""
        return sum(row.count(state) for row in self.methods)

    @property
    def num_runs(self) -> int:
        """Of all methods and seeds."""
        return sum(len(row.runs) for row in self.methods)


def study_folder(output: str | Path, name: str) -> Path:
    """`<output>/studies/<name>`."""
    return Path(output) / "studies" / name


def read_study(study: Study, output: str | Path) -> StudyResult:
    """Look at the run folders below `output`; starts nothing, changes nothing."""
    failures = read_failures(output)
    states = [_state_of(run, failures) for run in study.runs(str(output))]
    return StudyResult(
        study=study,
        output=Path(output),
        methods=tuple(
            MethodResult(
                method=method,
                runs=tuple(state for state in states if state.run.method is method),
            )
            for method in study.methods
        ),
    )


def _state_of(run: StudyRun, failures: dict[str, str]) -> RunState:
    directory = RunDirectory(Path(run.config.output) / run.config.run_name)
    result: RunResult | None = None
    error = failures.get(run.config.run_name)
    try:
        if directory.is_finished:
            result, error = RunResult.read(directory.path), None
    except ValueError as damage:  # one damaged file must not hide the other runs
        error = str(damage)
    state: State = "missing"
    if result is not None:
        state = "done"
    elif error is not None:
        state = "failed"
    elif directory.exists:
        state = "started"
    return RunState(run=run, directory=directory.path, state=state, result=result, error=error)
