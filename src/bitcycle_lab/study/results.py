"""The results of a study, read from the folders of its runs.

Below `<output>`, every run has its folder, and `studies/` holds what belongs to studies: the
messages of failed runs (failures.json) and, per study, the options it was last run with.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from bitcycle.files import write_json
from bitcycle_lab.study.study import Method, Study, StudyOptions, StudyRun, adjust, run_directory
from bitcycle_lab.study.study_file import find_study
from bitcycle_lab.train.result import RunResult
from bitcycle_lab.train.run_directory import RunDirectory

State = Literal["done", "failed", "started", "missing"]


@dataclass(frozen=True, kw_only=True)
class RunStatus(StudyRun):
    """A run and what its folder holds. started: it has a folder and no result yet."""

    directory: Path
    state: State
    result: RunResult | None = None
    error: str | None = None

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The complete lines of metrics.jsonl; empty without one."""
        lines = RunDirectory(self.directory).read_metrics()
        return [
            line for line in lines if isinstance(line, dict) and isinstance(line.get("step"), int)
        ]

    @property
    def num_steps(self) -> int:
        """The steps of the whole run if known, else those logged so far."""
        planned = self.config.steps if self.result is None else None
        return planned or self.last_step

    @property
    def last_step(self) -> int:
        """The last step of a finished run, else the last in the log."""
        if self.result is not None:
            return self.result.steps
        return max((line["step"] for line in self.metrics), default=0)


@dataclass(frozen=True, kw_only=True)
class MethodResult:
    """A method and its runs, one per seed."""

    method: Method
    runs: tuple[RunStatus, ...]

    @property
    def results(self) -> dict[int, RunResult]:
        """The results of the runs that are done, by seed."""
        return {run.seed: run.result for run in self.runs if run.result is not None}

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
        """The number of runs in that state."""
        return sum(run.state == state for run in self.runs)


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """A study and the results of its methods, in the study's order."""

    study: Study
    output: Path
    methods: tuple[MethodResult, ...]

    @property
    def folder(self) -> Path:
        """The folder of the study's own files: tables, pictures, the page."""
        return study_folder(self.output, self.study.name)

    def of(self, group: str) -> tuple[MethodResult, ...]:
        """The methods of one group."""
        return tuple(each for each in self.methods if each.method.group == group)

    def baseline(self, group: str) -> MethodResult | None:
        """The method that the others of the group are compared with; None without one."""
        found = [each for each in self.of(group) if each.method.label == self.study.baseline]
        return found[0] if found else None

    def count(self, state: State) -> int:
        """The number of runs in that state."""
        return sum(each.count(state) for each in self.methods)

    @property
    def num_runs(self) -> int:
        """The number of runs of all methods."""
        return sum(len(each.runs) for each in self.methods)


def distinct_runs(result: StudyResult) -> list[RunStatus]:
    """Every run of the study; a run that several methods share is listed once."""
    runs = {run.directory: run for method in result.methods for run in method.runs}
    return list(runs.values())


def study_folder(output: str | Path, name: str) -> Path:
    """`<output>/studies/<name>`."""
    return Path(output) / "studies" / name


def read_study(study: Study, output: str | Path) -> StudyResult:
    """Read the results of a study below `output`. Starts no run and writes nothing."""
    failures = read_failures(output)
    runs = [_read_run(run, failures) for run in study.runs(str(output))]
    return StudyResult(
        study=study,
        output=Path(output),
        methods=tuple(
            MethodResult(method=method, runs=tuple(run for run in runs if run.method is method))
            for method in study.methods
        ),
    )


def _read_run(run: StudyRun, failures: dict[str, str]) -> RunStatus:
    directory = run_directory(run.config)
    result: RunResult | None = None
    error = failures.get(run.config.run_name)
    try:
        if directory.is_finished:
            result, error = RunResult.read(directory.path), None
    except ValueError as damage:  # one damaged file must not hide the other runs
        error = str(damage)
    state: State = "started" if directory.exists else "missing"
    if result is not None:
        state = "done"
    elif error is not None:
        state = "failed"
    return RunStatus(
        method=run.method,
        config=run.config,
        directory=directory.path,
        state=state,
        result=result,
        error=error,
    )


# -- failed runs ----------------------------------------------------------------------------------


def failures_file(output: str | Path) -> Path:
    """`<output>/studies/failures.json`."""
    return Path(output) / "studies" / "failures.json"


def read_failures(output: str | Path) -> dict[str, str]:
    """Run name -> error message of every failed run."""
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
    """Replace the stored failures."""
    path = failures_file(output)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, failures)


def add_failure(output: str | Path, name: str, message: str) -> None:
    """Store that a run failed. Safe when several studies write at the same time."""
    with _locked(output):
        write_failures(output, {**read_failures(output), name: message})


def remove_failures(output: str | Path, names: Iterable[str]) -> None:
    """Forget the failures of these runs, which are tried again or have a result after all."""
    removed = set(names)
    if removed.isdisjoint(read_failures(output)):
        return
    with _locked(output):
        kept = {name: m for name, m in read_failures(output).items() if name not in removed}
        write_failures(output, kept)


@contextmanager
def _locked(output: str | Path) -> Iterator[None]:
    path = failures_file(output).with_name(".failures.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


# -- options of the last run ----------------------------------------------------------------------


def options_file(output: str | Path, name: str) -> Path:
    """`<output>/studies/<name>/options.json`."""
    return study_folder(output, name) / "options.json"


def write_options(output: str | Path, name: str, options: StudyOptions) -> None:
    """Store the options that a study is run with."""
    path = options_file(output, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, asdict(options))


def read_options(output: str | Path, name: str) -> StudyOptions | None:
    """The options that the study was last run with below `output`; None if it never was."""
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
    """A study with these options, by default those it was last run with below `output`.

    The default number of threads stays that of the first run: it is part of the configuration, and
    the runs are found again whatever the number of jobs.
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
    """The options with a default number of threads for the study `name`.

    The number is that of the study's first run; else the cores of this machine divided by the
    jobs, or one thread on a cluster, whose machines may differ.
    """
    stored = read_options(output, name)
    if stored is not None and stored.default_threads is not None:
        return replace(options, default_threads=stored.default_threads)
    cores = len(os.sched_getaffinity(0)) if engine == "local" else 1
    return replace(options, default_threads=max(1, cores // (num_jobs or 1)))
