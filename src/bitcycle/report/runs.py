"""Run folders as the report reads them: methods, their seeds, logs and bits over the steps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

from bitcycle.analysis.compare import Compared
from bitcycle.analysis.config_id import config_id
from bitcycle.precision import PARENTS, ROLES
from bitcycle.schedules import Bits, Schedule, parse_schedule
from bitcycle.study.results import MethodResult, RunState, State, StudyResult
from bitcycle.study.study import Method, Study, StudyRun
from bitcycle.train.config import RunConfig
from bitcycle.train.result import RunResult
from bitcycle.train.run_directory import RunDirectory

Segment = tuple[int, int, Bits]  # first step, end, bits


# -- logs -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoggedRun:
    """One run. Its files are read once, on first use; missing ones are empty."""

    directory: Path
    config: RunConfig
    result: RunResult | None

    @property
    def seed(self) -> int:
        """Of its configuration."""
        return self.config.seed

    @property
    def has_begun(self) -> bool:
        """Whether the run has a folder."""
        return (self.directory / "config.yaml").exists()

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The complete lines of metrics.jsonl."""
        lines = RunDirectory(self.directory).read_metrics()
        return [
            line for line in lines if isinstance(line, dict) and isinstance(line.get("step"), int)
        ]

    @cached_property
    def environment(self) -> dict[str, Any]:
        """env.json."""
        return read_object(self.directory / "env.json") or {}

    @property
    def num_steps(self) -> int:
        """Of the whole run if known, else the steps logged so far."""
        if self.result is not None:
            return self.result.steps
        return self.config.steps or max((line["step"] for line in self.metrics), default=0)


@dataclass(frozen=True, kw_only=True)
class LoggedMethod:
    """One method with its runs. title: its label, with the group if the study has several."""

    key: str
    label: str
    title: str
    group: str
    config: RunConfig
    runs: tuple[LoggedRun, ...]

    @property
    def begun(self) -> tuple[LoggedRun, ...]:
        """The runs with a folder."""
        return tuple(run for run in self.runs if run.has_begun)

    @property
    def num_steps(self) -> int:
        """Of the longest run."""
        return max((run.num_steps for run in self.runs), default=0)

    @property
    def found_low(self) -> int | None:
        """The lower bound that the range test of the first finished run put in for `auto`."""
        tests = [run.result.range_test for run in self.runs if run.result is not None]
        return next((int(test["test"]["low"]) for test in tests if test is not None), None)

    def schedules(self) -> dict[str, list[str]]:
        """Schedule text -> the roles that follow it, such as "act" or "act of layer1.*"."""
        given: dict[str, Any] = dict(self.config.precision.schedule_texts(auto=self.found_low))
        found: dict[str, list[str]] = {}
        for role in ROLES:
            text = given.get(role, given.get(PARENTS[role], "fp32"))
            for pattern, inner in (text if isinstance(text, dict) else {"": text}).items():
                name = f"{role} of {pattern}" if pattern else role
                found.setdefault(str("fp32" if inner is None else inner), []).append(name)
        return found

    def is_adaptive(self) -> bool:
        """Whether a schedule follows the training, so that every run has its own bits."""
        return any(s is not None and s.is_adaptive for s in map(_parse, self.schedules()))

    def bits(self, text: str, role: str) -> list[Segment]:
        """The bits that a schedule gave to a role; from the log if it adapts; empty if unknown.

        The log also serves unfinished runs that are configured by epochs: only the data know how
        many steps those are.
        """
        schedule = _parse(text)
        if schedule is None or self.num_steps < 1:
            return []
        is_length_known = self.config.steps is not None or any(run.result for run in self.runs)
        if schedule.is_adaptive or not is_length_known:
            return self.logged_bits(role)
        return segments(schedule.values(self.num_steps))

    def weight_bits(self) -> list[Segment]:
        """The bits of the weights; the most, as logged, where layers differ."""
        for text, roles in self.schedules().items():
            if "weight" in roles:
                return self.bits(text, "weight")
        return self.logged_bits("weight")

    def logged_bits(self, role: str) -> list[Segment]:
        """The bits in the log of the first run that has one; a line holds since the line before."""
        for run in self.begun:
            lines = [line for line in run.metrics if isinstance(line.get("bits"), dict)]
            if not lines:
                continue
            starts = [0, *(line["step"] for line in lines)]
            bits = [_most_bits(line["bits"].get(role)) for line in lines]
            return [
                (starts[places[0]], starts[places[-1] + 1], value)
                for value, run_of in groupby(range(len(bits)), key=lambda i: bits[i])
                if (places := list(run_of))
            ]
        return []


def segments(values: Iterable[Bits]) -> list[Segment]:
    """Steps with equal bits as one segment.

    >>> segments([3, 3, 4])
    [(0, 2, 3), (2, 3, 4)]
    """
    found: list[Segment] = []
    start = 0
    for bits, run in groupby(values):
        end = start + sum(1 for _ in run)
        found.append((start, end, bits))
        start = end
    return found


def _most_bits(bits: Any) -> Bits:
    """Of a log line: a number, None, or the distinct numbers of all layers (32 is float32)."""
    if isinstance(bits, list):
        most = max((b for b in bits if isinstance(b, int)), default=32)
        return None if most >= 32 else most
    return bits if isinstance(bits, int) else None


def _parse(text: str) -> Schedule | None:
    try:
        return parse_schedule(text)
    except ValueError:  # `auto` before its range test
        return None


def logged_methods(result: StudyResult) -> list[LoggedMethod]:
    """The methods of a study."""
    has_groups = len(result.study.groups) > 1
    return [
        LoggedMethod(
            key=row.method.key,
            label=row.method.label,
            title=row.method.key if has_groups else row.method.label,
            group=row.method.group,
            config=row.method.config,
            runs=tuple(LoggedRun(r.directory, r.run.config, r.result) for r in row.runs),
        )
        for row in result.methods
    ]


def logged_entries(entries: Iterable[Compared]) -> list[LoggedMethod]:
    """The configurations of a comparison."""
    return [
        LoggedMethod(
            key=entry.name,
            label=entry.name,
            title=entry.name,
            group="",
            config=entry.config,
            runs=tuple(LoggedRun(run.directory, run.config, run.result) for run in entry.runs),
        )
        for entry in entries
    ]


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None without one."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return stored if isinstance(stored, dict) else None


# -- folders of runs without a study --------------------------------------------------------------


@dataclass(frozen=True)
class _Run:
    path: Path
    config: RunConfig
    result: RunResult | None
    error: str | None

    @property
    def state(self) -> State:
        return "done" if self.result is not None else "failed" if self.error else "started"


def find_runs(folder: str | Path) -> list[Path]:
    """The folder itself if it is a run, else every run below it."""
    root = Path(folder)
    if RunDirectory(root).exists:
        return [root]
    found = sorted(path.parent for path in root.rglob("config.yaml"))
    if not found:
        raise ValueError(
            f"there is no run in {folder} (no config.yaml in it or below): give the folder of a "
            "run, a folder with runs, or a study"
        )
    return found


def collect_runs(directories: Iterable[str | Path]) -> StudyResult:
    """Treat run folders as a study: runs of one configuration in one folder are seeds of a method.

    The notes name the folders whose configuration cannot be read.
    """
    runs, notes = [], []
    paths = [Path(directory) for directory in directories]
    for path in paths:
        try:
            runs.append(_read(path))
        except ValueError as error:
            notes.append(f"{path.name} is left out: {error}")
    if not runs:
        raise ValueError("there is no run to report: " + ("; ".join(notes) or "give at least one"))
    sets: dict[tuple[Path, str], list[_Run]] = {}
    for run in runs:
        sets.setdefault((run.path.parent, config_id(run.config)), []).append(run)
    methods = _methods(list(sets.values()))
    first = paths[0].resolve()
    study = Study(
        name=(first if len(paths) == 1 else first.parent).name or "runs",
        description="",
        methods=tuple(methods),
        seeds=tuple(sorted({run.config.seed for run in runs})),
        notes=tuple(notes),
    )
    results = [_result(method, same) for method, same in zip(methods, sets.values(), strict=True)]
    return StudyResult(study=study, output=paths[0].parent, methods=tuple(results))


def _read(path: Path) -> _Run:
    directory = RunDirectory(path)
    config = directory.read_config()
    if not directory.is_finished:
        return _Run(path, config, None, None)
    try:
        return _Run(path, config, RunResult.read(path), None)
    except ValueError as error:
        return _Run(path, config, None, str(error))


def _methods(sets: Sequence[Sequence[_Run]]) -> list[Method]:
    """Labels are the runs' names; equal names get folder and configuration, then a number."""
    names = [same[0].config.name for same in sets]
    methods: list[Method] = []
    for place, (same, name) in enumerate(zip(sets, names, strict=True), 1):
        config, label = same[0].config, name
        if names.count(name) > 1:
            label = f"{name} ({same[0].path.parent.name}, {config_id(config)})"
        group = f"{config.model.name} on {config.data.name}"
        if any((method.group, method.label) == (group, label) for method in methods):
            label = f"{label} #{place}"
        methods.append(Method(label=label, config=config, group=group))
    return methods


def _result(method: Method, same: Sequence[_Run]) -> MethodResult:
    return MethodResult(
        method=method,
        runs=tuple(
            RunState(
                run=StudyRun(method=method, seed=run.config.seed, config=run.config),
                directory=run.path,
                state=run.state,
                result=run.result,
                error=run.error,
            )
            for run in sorted(same, key=lambda run: run.config.seed)
        ),
    )
