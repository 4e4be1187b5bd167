"""Run folders that belong to no study, put together as if they did: seeds of one configuration."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bitcycle.study.base import Method, Study, StudyRun
from bitcycle.study.identity import config_id
from bitcycle.study.results import MethodResult, RunState, State, StudyResult
from bitcycle.train.config import RunConfig
from bitcycle.train.directory import RunDirectory
from bitcycle.train.result import RunResult


@dataclass(frozen=True)
class _Run:
    directory: RunDirectory
    config: RunConfig
    result: RunResult | None
    error: str | None

    @property
    def state(self) -> State:
        return "done" if self.result is not None else "failed" if self.error else "started"


def find_runs(folder: str | Path) -> list[Path]:
    """The folder itself if it is a run, otherwise every run below it."""
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


def collect_runs(directories: Iterable[str | Path], *, title: str | None = None) -> StudyResult:
    """Every folder as a run; those of one configuration, beside each other, are seeds of a method.

    A folder whose configuration cannot be read is named in the notes.
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
        sets.setdefault((run.directory.path.parent, config_id(run.config)), []).append(run)
    methods = _name(list(sets.values()))
    name = title or _title(paths)
    study = Study(
        name=name.replace("/", "-") or "runs",
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
        return _Run(directory, config, None, None)
    try:
        return _Run(directory, config, RunResult.read(path), None)
    except ValueError as error:
        return _Run(directory, config, None, str(error))


def _title(paths: Sequence[Path]) -> str:
    return paths[0].resolve().name if len(paths) == 1 else paths[0].resolve().parent.name


def _name(sets: Sequence[Sequence[_Run]]) -> list[Method]:
    """Labels are the runs' names; equal ones are told apart by folder and configuration."""
    names = [same[0].config.name for same in sets]
    methods = []
    for same, name in zip(sets, names, strict=True):
        config, parent = same[0].config, same[0].directory.path.parent
        label = name
        if names.count(name) > 1:
            label = f"{name} ({parent.name}, {config_id(config)})"
        group = f"{config.model.name} on {config.data.name}"
        methods.append(Method(label=label, config=config, group=group))
    keys = [method.key for method in methods]
    return [
        Method(label=f"{method.label} #{i + 1}", config=method.config, group=method.group)
        if keys.count(method.key) > 1
        else method
        for i, method in enumerate(methods)
    ]


def _result(method: Method, same: Sequence[_Run]) -> MethodResult:
    return MethodResult(
        method=method,
        runs=tuple(
            RunState(
                run=StudyRun(method=method, seed=run.config.seed, config=run.config),
                directory=run.directory.path,
                state=run.state,
                result=run.result,
                error=run.error,
            )
            for run in sorted(same, key=lambda run: run.config.seed)
        ),
    )
