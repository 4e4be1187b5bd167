"""A study with its runs: what each one's state is, and the values of those that are done."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from bitcycle.files import write_json
from bitcycle.study.study import Method, Study, StudyOptions, StudyRun, adjust
from bitcycle.study.study_file import find_study
from bitcycle.train.result import RunResult
from bitcycle.train.run_directory import RunDirectory


def failures_file(output: str | Path) -> Path:
    """Where they are kept."""
    return Path(output) / "studies" / "failures.json"


def read_failures(output: str | Path) -> dict[str, str]:
    """Run name -> the message it ended with; empty when nothing failed."""
    path = failures_file(output)
    if not path.exists():
        return {}
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): str(message) for name, message in stored.items()}
    except (ValueError, AttributeError) as error:
        raise ValueError(
            f"{path} is damaged ({error}); delete it: failed runs are then tried again"
        ) from None


def write_failures(output: str | Path, failures: dict[str, str]) -> None:
    """Replace what is there."""
    path = failures_file(output)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, failures)


def add_failure(output: str | Path, name: str, message: str) -> None:
    """Note that a run crashed; other studies may do the same at this moment."""
    with _locked(output):
        write_failures(output, {**read_failures(output), name: message})


def remove_failures(output: str | Path, names: Iterable[str]) -> None:
    """Forget these, where they are noted: they are tried again, or have a result after all."""
    gone = set(names)
    if gone.isdisjoint(read_failures(output)):
        return
    with _locked(output):
        kept = {name: m for name, m in read_failures(output).items() if name not in gone}
        write_failures(output, kept)


@contextmanager
def _locked(output: str | Path) -> Iterator[None]:
    path = failures_file(output).with_name(".failures.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


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


def options_file(output: str | Path, name: str) -> Path:
    """Where they are kept."""
    return study_folder(output, name) / "options.json"


def write_options(output: str | Path, name: str, options: StudyOptions) -> None:
    """Remember what a study is run with."""
    path = options_file(output, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, asdict(options))


def read_options(output: str | Path, name: str) -> StudyOptions | None:
    """What the study was last run with below `output`; None when it was not."""
    path = options_file(output, name)
    if not path.exists():
        return None
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        seeds = stored.pop("seeds")
        return StudyOptions(
            **{**stored, "overrides": tuple(stored["overrides"])},
            seeds=None if seeds is None else tuple(seeds),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is damaged ({error}); delete it and give the study's options again"
        ) from None


def open_study(name_or_path: str, output: str | Path, options: StudyOptions | None = None) -> Study:
    """A study as it was last run below `output`, or with these options in place of its own.

    Threads that nobody chose stay those it was begun with: its runs are then found again,
    whatever the number of jobs would suggest today.
    """
    study = find_study(name_or_path)
    stored = read_options(output, study.name) or StudyOptions()
    if options is None or options == StudyOptions():
        return adjust(study, stored)
    if options.default_threads is None:
        options = replace(options, default_threads=stored.default_threads)
    return adjust(study, options)


def choose_options(
    name: str,
    output: str | Path,
    options: StudyOptions,
    *,
    num_jobs: int | None,
    engine: str = "local",
) -> StudyOptions:
    """The options of the study `name` with a number of threads for runs that leave it open.

    Those the study was begun with; otherwise the processors of this machine divided by the jobs,
    and one on a cluster, whose machines may differ.
    """
    stored = read_options(output, name)
    if stored is not None and stored.default_threads is not None:
        return replace(options, default_threads=stored.default_threads)
    cores = len(os.sched_getaffinity(0)) if engine == "local" else 1
    return replace(options, default_threads=max(1, cores // (num_jobs or 1)))
