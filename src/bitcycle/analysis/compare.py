"""`bitcycle compare`: results and settings of runs on disk, side by side.

`compare_runs` reads run folders and groups the seeds of one configuration. `comparison_tables` and
`comparison_json` are the two outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bitcycle.analysis.config_id import IGNORED_SETTINGS, config_id
from bitcycle.analysis.numbers import (
    UNITS,
    cost_text,
    difference_text,
    duration_text,
    p_text,
    summary_text,
)
from bitcycle.analysis.statistics import Difference, Summary, paired_difference, summarize_values
from bitcycle.tables import Table, without_empty_columns
from bitcycle.tasks import TASKS
from bitcycle.train.config import RunConfig
from bitcycle.train.config_file import to_dict
from bitcycle.train.result import RunResult
from bitcycle.train.run_directory import RunDirectory

FINAL = "Final: the last weights on the test split"
BEST = "; best: those with the best validation metric"
REST = (
    "; at: the bits of the evaluation. Several seeds: mean ± standard deviation. Cost: training "
    "BitOPs, the first finished row's = 1."
)


def compare_runs(folders: Iterable[str | Path]) -> Comparison:
    """Read run folders and group the seeds of one configuration; duplicates count once."""
    found = [_read(path) for path in dict.fromkeys(Path(folder).resolve() for folder in folders)]
    if not found:
        raise ValueError("nothing to compare: give the folders of runs, such as runs/*")
    by_config: dict[str, list[RecordedRun]] = {}
    for run in found:
        by_config.setdefault(config_id(run.config), []).append(run)
    seeds = [tuple(sorted(runs, key=lambda r: r.config.seed)) for runs in by_config.values()]
    for runs in seeds:
        _check_seeds(runs)
    base = next((cost for runs in seeds if (cost := _finished_cost(runs)) is not None), None)
    return Comparison(
        groups=tuple(
            _group(name, runs, seeds[0], base)
            for name, runs in zip(_names(seeds), seeds, strict=True)
        ),
        differing=differing_settings([runs[0].config for runs in seeds]),
    )


def _read(path: Path) -> RecordedRun:
    directory = RunDirectory(path)
    if not directory.exists:
        num_runs = len(list(path.glob("*/config.yaml"))) if path.is_dir() else 0
        hint = f"; it holds {num_runs} runs: give {path}/*" if num_runs else ""
        raise ValueError(f"{path} is not a run: it has no config.yaml{hint}")
    return RecordedRun(
        directory=path,
        config=directory.read_config(),
        lines=tuple(directory.read_metrics()),
        result=RunResult.read(path) if directory.is_finished else None,
    )


def _check_seeds(runs: Sequence[RecordedRun]) -> None:
    for one, other in zip(runs, runs[1:], strict=False):
        if one.config.seed == other.config.seed:
            raise ValueError(
                f"{one.directory} and {other.directory} have the same settings and seed "
                f"({one.config.seed}): give one of them"
            )


def _names(runs: Sequence[Sequence[RecordedRun]]) -> list[str]:
    """The configurations' names, with the folder or a number where two are equal."""
    names = [group[0].config.name for group in runs]
    folders = [group[0].directory.parent.name for group in runs]
    numbers = [str(number) for number in range(1, len(runs) + 1)]
    marks = folders if len(set(folders)) == len(folders) else numbers
    return [
        name if names.count(name) == 1 else f"{name} ({mark})"
        for name, mark in zip(names, marks, strict=True)
    ]


def _finished_cost(runs: Sequence[RecordedRun]) -> float | None:
    return _mean(run.bitops for run in runs if run.result is not None)


def _group(
    name: str, runs: tuple[RecordedRun, ...], first: tuple[RecordedRun, ...], base: float | None
) -> SeedGroup:
    cost = _finished_cost(runs) or _mean(run.bitops for run in runs)
    finals = _finals(runs)
    results = [run.result for run in runs if run.result is not None]
    best = [r.best[r.metric] for r in results if r.best is not None]
    is_comparable = runs is not first and runs[0].config.task == first[0].config.task
    return SeedGroup(
        name=name,
        runs=runs,
        final=summarize_values(finals.values()) if finals else None,
        best=summarize_values(best) if best else None,
        relative_cost=cost / base if cost is not None and base else None,
        difference=paired_difference(finals, _finals(first)) if is_comparable else None,
    )


def _finals(runs: Sequence[RecordedRun]) -> dict[int, float]:
    return {run.config.seed: run.result.value for run in runs if run.result is not None}


def _mean(numbers: Iterable[float | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return sum(known) / len(known) if known else None


def differing_settings(configs: Sequence[RunConfig]) -> dict[str, tuple[str, ...]]:
    """Dotted settings that differ between configurations and decide a result, as text."""
    flat = [_flat(to_dict(config)) for config in configs]
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


# -- the comparison -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Configurations in order. differing: setting -> its value in each configuration."""

    groups: tuple[SeedGroup, ...]
    differing: dict[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class SeedGroup:
    """The runs of one configuration, by seed.

    relative_cost: mean BitOPs over those of the first finished configuration; of unfinished runs
    the BitOPs so far. difference: to the first configuration, over common seeds.
    """

    name: str
    runs: tuple[RecordedRun, ...]
    final: Summary | None
    best: Summary | None
    relative_cost: float | None
    difference: Difference | None

    @property
    def config(self) -> RunConfig:
        """The configuration of the first seed."""
        return self.runs[0].config

    @property
    def metric(self) -> str:
        """The metric of its task."""
        return TASKS[self.config.task].metric

    @property
    def seeds(self) -> tuple[int, ...]:
        """In ascending order."""
        return tuple(run.config.seed for run in self.runs)

    @property
    def num_unfinished(self) -> int:
        """Runs without a result."""
        return sum(run.result is None for run in self.runs)


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """A run folder: its configuration, its log and, if it is finished, its result."""

    directory: Path
    config: RunConfig
    lines: tuple[dict[str, Any], ...]
    result: RunResult | None

    @property
    def step(self) -> int:
        """The last logged step."""
        if self.result is not None:
            return self.result.steps
        return max((line["step"] for line in self.lines), default=0)

    @property
    def bitops(self) -> float | None:
        """BitOPs so far; None before the first log line."""
        if self.result is not None:
            return float(self.result.cost["bitops"])
        spent = [line["bitops"] for line in self.lines if line["kind"] == "train"]
        return float(spent[-1]) if spent else None

    @property
    def seconds(self) -> float | None:
        """Seconds of training so far; None before the first log line."""
        if self.result is not None:
            return self.result.seconds
        spent = [line["seconds"] for line in self.lines if line["kind"] == "train"]
        return float(spent[-1]) if spent else None


# -- tables and JSON ------------------------------------------------------------------------------


def comparison_tables(comparison: Comparison) -> tuple[Table, ...]:
    """The results, the differences to the first row, and the settings that differ."""
    tables = (_results(comparison), _differences(comparison), _settings(comparison))
    return tuple(table for table in tables if table.rows)


def _results(comparison: Comparison) -> Table:
    metrics = {_metric(group) for group in comparison.groups}
    has_best = any(group.best for group in comparison.groups)
    common = metrics.pop() if len(metrics) == 1 else None
    rows = [
        (
            group.name,
            _seeds(group.seeds),
            _steps(group),
            "" if common else _metric(group),
            summary_text(group.final) if group.final else "",
            summary_text(group.best) if group.best else "",
            _evaluated(group),
            cost_text(group.relative_cost) if group.relative_cost is not None else "",
            _time(group),
            state_text(group) if group.num_unfinished else "",
        )
        for group in comparison.groups
    ]
    names = ("run", "seeds", "steps", "metric", "final", "best", "at", "cost", "time", "state")
    return without_empty_columns(
        Table(
            name="runs",
            title=f"Runs: {common}" if common else "Runs",
            columns=tuple(("", name) for name in names),
            rows=tuple(rows),
            is_number=tuple(name in ("steps", "final", "best", "cost", "time") for name in names),
            caption=FINAL + (BEST if has_best else "") + REST,
        )
    )


def _differences(comparison: Comparison) -> Table:
    rows = [
        (e.name, difference_text(e.difference), str(e.difference.n), p_text(e.difference.p))
        for e in comparison.groups
        if e.difference is not None
    ]
    names = ("run", "difference (95 % interval)", "pairs", "p")
    return Table(
        name="differences",
        title=f"Final value minus that of {comparison.groups[0].name}, over common seeds",
        columns=tuple(("", name) for name in names),
        rows=tuple(rows),
        is_number=(False, True, True, True),
    )


def _settings(comparison: Comparison) -> Table:
    return Table(
        name="settings",
        title="Settings that differ",
        columns=(("", "setting"), *(("", group.name) for group in comparison.groups)),
        rows=tuple((key, *values) for key, values in comparison.differing.items()),
        is_number=(False,) * (1 + len(comparison.groups)),
    )


def _metric(group: SeedGroup) -> str:
    unit = UNITS.get(group.metric, "").strip()
    return f"{group.metric}, {unit}" if unit else group.metric


def _evaluated(group: SeedGroup) -> str:
    """The precision of the evaluations."""
    results = [run.result for run in group.runs if run.result is not None]
    return ", ".join(dict.fromkeys(result.eval_precision for result in results))


def _seeds(seeds: tuple[int, ...]) -> str:
    """Seeds as text, three or more neighbours as a range.

    >>> _seeds((0, 1, 2, 7)), _seeds((3,)), _seeds((0, 1))
    ('0-2, 7', '3', '0, 1')
    """
    spans: list[list[int]] = []
    for seed in seeds:
        if spans and spans[-1][-1] == seed - 1:
            spans[-1].append(seed)
        else:
            spans.append([seed])
    texts = (
        f"{span[0]}-{span[-1]}" if len(span) > 2 else ", ".join(map(str, span)) for span in spans
    )
    return ", ".join(texts)


def _steps(group: SeedGroup) -> str:
    steps = sorted({run.step for run in group.runs})
    reached = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
    total = group.config.steps
    return f"{reached} of {total:,}" if group.num_unfinished and total is not None else reached


def _time(group: SeedGroup) -> str:
    """The mean training time of a run."""
    seconds = [run.seconds for run in group.runs if run.seconds is not None]
    return duration_text(sum(seconds) / len(seconds)) if seconds else ""


def state_text(group: SeedGroup) -> str:
    """`finished`, or the number of runs that are not."""
    if not group.num_unfinished:
        return "finished"
    if len(group.runs) == 1:
        return "not finished"
    return f"{group.num_unfinished} of {len(group.runs)} not finished"


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison with unrounded numbers, in JSON types."""
    return {
        "runs": [
            {
                "name": group.name,
                "seeds": list(group.seeds),
                "directories": [str(run.directory) for run in group.runs],
                "state": state_text(group),
                "steps": [run.step for run in group.runs],
                "metric": group.metric,
                "values": [None if run.result is None else run.result.value for run in group.runs],
                "final": asdict(group.final) if group.final else None,
                "best": asdict(group.best) if group.best else None,
                "eval_precision": [
                    None if run.result is None else run.result.eval_precision for run in group.runs
                ],
                "difference": asdict(group.difference) if group.difference else None,
                "bitops": [run.bitops for run in group.runs],
                "relative_cost": group.relative_cost,
                "seconds": [run.seconds for run in group.runs],
            }
            for group in comparison.groups
        ],
        "differing": {key: list(values) for key, values in comparison.differing.items()},
    }
