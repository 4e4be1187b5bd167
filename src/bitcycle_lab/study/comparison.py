"""A study made of given run folders, for `bitcycle compare` and the report page of runs.

`collect_runs` reads the folders: runs of one configuration are the seeds of a method.
`comparison_tables` and `comparison_json` are the outputs of `bitcycle compare`.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bitcycle.files import to_plain
from bitcycle.tables import Table, with_caption, without_empty_columns
from bitcycle.warnings import BitcycleWarning
from bitcycle_lab.study.number_text import duration_text, summary_text
from bitcycle_lab.study.results import MethodResult, RunStatus, StudyResult
from bitcycle_lab.study.statistics import summarize_values
from bitcycle_lab.study.study import Method, Study, plain_name
from bitcycle_lab.study.summary import metric_title, study_notes, summarize
from bitcycle_lab.study.tables import differences_table, method_rows, values_table
from bitcycle_lab.tasks.config import task_metric
from bitcycle_lab.train.config import RunConfig
from bitcycle_lab.train.config_file import to_dict
from bitcycle_lab.train.config_id import IGNORED_SETTINGS, config_id
from bitcycle_lab.train.result import RunResult
from bitcycle_lab.train.run_directory import RunDirectory

RUNS = {
    "final": "Final: the last weights on the test split, at the bits of `at`.",
    "best": "Best: the weights with the best validation metric.",
    "weights": "Weights: the first digits of their SHA-256.",
}

_MOST_MARKS, _MOST_NAMES = 2, 3  # settings in a label, folders in a title

# -- run folders ----------------------------------------------------------------------------------


def find_runs(folder: str | Path) -> list[Path]:
    """The folder itself if it is a run, else every run below it."""
    root = Path(folder)
    if RunDirectory(root).exists:
        return [root]
    found = sorted(path.parent for path in root.rglob("config.yaml"))
    if not found:
        raise ValueError(
            f"there is no run in {folder} (no config.yaml in it or below): give the folder of a "
            "run or a folder with runs"
        )
    return found


def collect_runs(directories: Iterable[str | Path], *, with_baseline: bool = False) -> StudyResult:
    """Treat run folders as a study: runs of one configuration are the seeds of a method.

    A run that repeats a configuration and a seed belongs to a method of its own. Folders count
    once. Those whose configuration cannot be read are left out, with a warning and a note.
    with_baseline: the first method with a finished run is the baseline.
    """
    runs, notes = [], []
    paths = list({Path(directory).resolve(): Path(directory) for directory in directories}.values())
    for path in paths:
        try:
            runs.append(_read(path))
        except ValueError as error:
            notes.append(f"{path.name} is left out: {error}")
    if not runs:
        raise ValueError("there is no run to report: " + ("; ".join(notes) or "give at least one"))
    for note in notes:
        warnings.warn(note, BitcycleWarning, stacklevel=2)
    methods = _methods(runs)
    done = [each.method.label for each in methods if each.results]
    study = Study(
        name=_name([path.resolve() for path in paths]),
        description="",
        methods=tuple(each.method for each in methods),
        seeds=tuple(sorted({run.seed for run in runs})),
        baseline=done[0] if with_baseline and done else None,
        notes=tuple(notes),
    )
    return StudyResult(study=study, output=paths[0].parent, methods=methods)


def _name(paths: Sequence[Path]) -> str:
    """The folder of one run, or the folders above several."""
    if len(paths) == 1:
        return paths[0].name or "runs"
    names = list(dict.fromkeys(path.parent.name for path in paths))
    more = [f"{len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES else []
    return ", ".join(filter(None, [*names[:_MOST_NAMES], *more])) or "runs"


def _read(path: Path) -> RunStatus:
    directory = RunDirectory(path)
    config = directory.read_config()
    result = error = None
    try:
        result = RunResult.read(path) if directory.is_finished else None
    except ValueError as damage:
        error = str(damage)
    return RunStatus(
        method=Method(label=config.name, config=config),
        config=config,
        directory=path,
        state="done" if result is not None else "failed" if error else "started",
        result=result,
        error=error,
    )


def _methods(runs: Sequence[RunStatus]) -> tuple[MethodResult, ...]:
    """The runs by configuration, seeds in ascending order; groups if tasks or data differ."""
    sets: dict[tuple[str, int], list[RunStatus]] = {}
    repeated: Counter[tuple[str, int]] = Counter()
    for run in runs:
        own = config_id(run.config)
        sets.setdefault((own, repeated[own, run.seed]), []).append(run)
        repeated[own, run.seed] += 1
    groups = [f"{same[0].config.task} on {same[0].config.data.name}" for same in sets.values()]
    found = []
    for same, label, group in zip(sets.values(), _labels([*sets.values()]), groups, strict=True):
        method = Method(
            label=label, config=same[0].config, group=group if len(set(groups)) > 1 else ""
        )
        by_seed = sorted(same, key=lambda run: run.seed)
        statuses = tuple(replace(run, method=method) for run in by_seed)
        found.append(MethodResult(method=method, runs=statuses))
    return tuple(found)


def _labels(sets: Sequence[Sequence[RunStatus]]) -> list[str]:
    """The runs' names; where two are equal with what differs, the folder above, or a number."""
    configs = [same[0].config for same in sets]
    names = [plain_name(config) for config in configs]
    numbers = [str(number) for number in range(1, len(sets) + 1)]
    folders = [same[0].directory.resolve().parent.name for same in sets]
    for marks in (_differences(configs, names), folders, numbers):
        labels = [
            name if names.count(name) == 1 else f"{name} ({mark})"
            for name, mark in zip(names, marks, strict=True)
        ]
        if len(set(labels)) == len(labels):
            return labels
    return [f"{label} #{number}" for label, number in zip(labels, numbers, strict=True)]


def _differences(configs: Sequence[RunConfig], names: Sequence[str]) -> list[str]:
    """The settings in which each differs from the others of its name; empty if they are many."""
    settings = [_flat(to_dict(config)) for config in configs]
    marks = []
    for name, own in zip(names, settings, strict=True):
        keys = _differing([s for s, other in zip(settings, names, strict=True) if other == name])
        words = [f"{key.rpartition('.')[2]} {own.get(key, '-')}" for key in keys]
        marks.append(", ".join(words) if len(words) <= _MOST_MARKS else "")
    return marks


# -- comparison -----------------------------------------------------------------------------------


def comparison_tables(result: StudyResult) -> tuple[Table, ...]:
    """Values by configuration, differences to the baseline, every run, settings that differ."""
    groups = summarize(result)
    tables = (values_table(groups), differences_table(groups), runs_table(result),
              settings_table(result))  # fmt: skip
    return tuple(table for table in tables if table.rows)


def comparison_json(result: StudyResult) -> dict[str, Any]:
    """The comparison with unrounded numbers, in JSON types."""
    found: dict[str, Any] = to_plain(
        {
            "methods": method_rows(result),
            "runs": run_rows(result),
            "settings": {key: list(values) for key, values in differing_settings(result).items()},
            "notes": list(study_notes(result)),
        }
    )
    return found


def run_rows(result: StudyResult) -> list[dict[str, Any]]:
    """Every run; of one that is not finished what its log has."""
    return [_run_row(run) for method in result.methods for run in method.runs]


def _run_row(run: RunStatus) -> dict[str, Any]:
    done, metric = run.result, task_metric(run.config.task).name
    trained = [line for line in run.metrics if line.get("kind") == "train"]
    last = trained[-1] if trained else {}
    return {
        "method": run.method.key,
        "seed": run.seed,
        "directory": str(run.directory),
        "state": run.state,
        "error": run.error,
        "steps": run.last_step,
        "metric": metric,
        "final": done.value if done else None,
        "best": done.best[metric] if done and done.best else None,
        "eval_precision": done.eval_precision if done else None,
        "bitops": float(done.cost["bitops"]) if done else last.get("bitops"),
        "seconds": done.seconds if done else last.get("seconds"),
        "weights_sha256": done.weights_sha256 if done else None,
    }


def runs_table(result: StudyResult) -> Table:
    """A row per run."""
    rows = run_rows(result)
    configs = [run.config for method in result.methods for run in method.runs]
    titles = {metric_title(row["metric"]) for row in rows}
    cells = [
        {
            "run": row["method"],
            "seed": str(row["seed"]),
            "steps": _steps(row, config),
            "metric": metric_title(row["metric"]) if len(titles) > 1 else "",
            "final": _value(row["final"]),
            "best": _value(row["best"]),
            "at": row["eval_precision"] or "",
            "time": "" if row["seconds"] is None else duration_text(row["seconds"]),
            "weights": (row["weights_sha256"] or "")[:12],
            "state": {"done": "", "started": "not finished"}.get(row["state"], row["error"] or ""),
        }
        for row, config in zip(rows, configs, strict=True)
    ]
    title = f"Runs: {titles.pop()}" if len(titles) == 1 else "Runs"
    notes = " ".join(f"{note}." for note in study_notes(result))
    table = _table("runs", title, cells, ("seed", "steps", "final", "best", "time"))
    return with_caption(table, notes, RUNS)


def _steps(row: dict[str, Any], config: RunConfig) -> str:
    of = f" of {config.steps:,}" if row["state"] != "done" and config.steps is not None else ""
    return f"{row['steps']:,}{of}"


def _value(value: float | None) -> str:
    return "" if value is None else summary_text(summarize_values([value]))


def settings_table(result: StudyResult) -> Table:
    """A row per setting that differs, a column per method."""
    labels = [each.method.key for each in result.methods]
    cells = [
        {"setting": key, **dict(zip(labels, values, strict=True))}
        for key, values in differing_settings(result).items()
    ]
    return _table("settings", "Settings that differ", cells)


def _table(
    name: str,
    title: str,
    cells: Sequence[dict[str, str]],
    numbers: Sequence[str] = (),
) -> Table:
    headings = tuple(cells[0]) if cells else ()
    return without_empty_columns(
        Table(
            name=name,
            title=title,
            columns=tuple(("", heading) for heading in headings),
            rows=tuple(tuple(row.values()) for row in cells),
            is_number=tuple(heading in numbers for heading in headings),
        )
    )


def differing_settings(result: StudyResult) -> dict[str, tuple[str, ...]]:
    """Dotted settings that differ between methods and decide a result: the value of each."""
    return _differing([_flat(to_dict(each.method.config)) for each in result.methods])


def _differing(flat: Sequence[dict[str, Any]]) -> dict[str, tuple[str, ...]]:
    keys = dict.fromkeys(key for settings in flat for key in settings)
    rows = {key: tuple(str(settings.get(key, "-")) for settings in flat) for key in keys}
    return {
        key: values
        for key, values in rows.items()
        if len(set(values)) > 1
        and not any(key == name or key.startswith(f"{name}.") for name in IGNORED_SETTINGS)
    }


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            found.update(_flat(value, f"{prefix}{key}."))
        else:
            found[prefix + key] = value
    return found
