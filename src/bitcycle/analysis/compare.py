"""A few runs side by side: seeds of one configuration together, settings that differ by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bitcycle.analysis.config_id import NOT_PART, config_id
from bitcycle.analysis.numbers import UNITS, cost_text, difference_text, p_text, summary_text
from bitcycle.analysis.statistics import Difference, Summary, paired_difference, summarize_values
from bitcycle.tables import Table, without_empty_columns
from bitcycle.tasks import TASKS
from bitcycle.train.config import RunConfig
from bitcycle.train.config_file import to_dict
from bitcycle.train.result import RunResult
from bitcycle.train.run_directory import RunDirectory


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """One folder: its settings, its log and, if it is finished, its result."""

    directory: Path
    config: RunConfig
    lines: tuple[dict[str, Any], ...]
    result: RunResult | None

    @property
    def step(self) -> int:
        """The last one that was logged."""
        if self.result is not None:
            return self.result.steps
        return max((line["step"] for line in self.lines), default=0)

    @property
    def bitops(self) -> float | None:
        """Spent so far; None before the first line."""
        if self.result is not None:
            return float(self.result.cost["bitops"])
        spent = [line["bitops"] for line in self.lines if line["kind"] == "train"]
        return float(spent[-1]) if spent else None

    @property
    def seconds(self) -> float | None:
        """Trained so far; None before the first line."""
        if self.result is not None:
            return self.result.seconds
        spent = [line["seconds"] for line in self.lines if line["kind"] == "train"]
        return float(spent[-1]) if spent else None


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The runs of one configuration, by seed.

    relative_cost: mean BitOPs, the first finished configuration's = 1; of an unfinished one so far.
    difference: to the first configuration, over common seeds.
    """

    name: str
    runs: tuple[ComparedRun, ...]
    final: Summary | None
    best: Summary | None
    relative_cost: float | None
    difference: Difference | None

    @property
    def config(self) -> RunConfig:
        """That of its first seed."""
        return self.runs[0].config

    @property
    def metric(self) -> str:
        """What it is judged by."""
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
class Comparison:
    """Configurations in the order given. differing: setting -> its value in each of them."""

    entries: tuple[Compared, ...]
    differing: dict[str, tuple[str, ...]]


def compare_runs(folders: Iterable[str | Path]) -> Comparison:
    """Read the folders; one that is given twice counts once."""
    found = [_read(path) for path in dict.fromkeys(Path(folder).resolve() for folder in folders)]
    if not found:
        raise ValueError("nothing to compare: give the folders of runs, such as runs/*")
    together: dict[str, list[ComparedRun]] = {}
    for run in found:
        together.setdefault(config_id(run.config), []).append(run)
    runs = [tuple(sorted(group, key=lambda r: r.config.seed)) for group in together.values()]
    for group in runs:
        _check_seeds(group)
    names = _names(runs)
    base = next((cost for group in runs if (cost := _finished_cost(group)) is not None), None)
    entries = [_entry(name, group, runs[0], base) for name, group in zip(names, runs, strict=True)]
    return Comparison(
        entries=tuple(entries), differing=differing([group[0].config for group in runs])
    )


def _read(path: Path) -> ComparedRun:
    directory = RunDirectory(path)
    if not directory.exists:
        inside = len(list(path.glob("*/config.yaml"))) if path.is_dir() else 0
        hint = f"; it holds {inside} runs: give {path}/*" if inside else ""
        raise ValueError(f"{path} is not a run: it has no config.yaml{hint}")
    return ComparedRun(
        directory=path,
        config=directory.read_config(),
        lines=tuple(directory.read_metrics()),
        result=RunResult.read(path) if directory.is_finished else None,
    )


def _check_seeds(runs: Sequence[ComparedRun]) -> None:
    for one, other in zip(runs, runs[1:], strict=False):
        if one.config.seed == other.config.seed:
            raise ValueError(
                f"{one.directory} and {other.directory} are the same settings and seed "
                f"({one.config.seed}): give one of them"
            )


def _names(runs: Sequence[Sequence[ComparedRun]]) -> list[str]:
    """The configurations' names; with the folder, or a number, where two have the same."""
    names = [group[0].config.name for group in runs]
    folders = [group[0].directory.parent.name for group in runs]
    numbers = [str(number) for number in range(1, len(runs) + 1)]
    marks = folders if len(set(folders)) == len(folders) else numbers
    return [
        name if names.count(name) == 1 else f"{name} ({mark})"
        for name, mark in zip(names, marks, strict=True)
    ]


def _finished_cost(runs: Sequence[ComparedRun]) -> float | None:
    return _mean(run.bitops for run in runs if run.result is not None)


def _entry(
    name: str, runs: tuple[ComparedRun, ...], first: tuple[ComparedRun, ...], base: float | None
) -> Compared:
    cost = _finished_cost(runs) or _mean(run.bitops for run in runs)
    finals = _finals(runs)
    results = [run.result for run in runs if run.result is not None]
    best = [r.best[r.metric] for r in results if r.best is not None]
    is_comparable = runs is not first and runs[0].config.task == first[0].config.task
    return Compared(
        name=name,
        runs=runs,
        final=summarize_values(finals.values()) if finals else None,
        best=summarize_values(best) if best else None,
        relative_cost=cost / base if cost is not None and base else None,
        difference=paired_difference(finals, _finals(first)) if is_comparable else None,
    )


def _finals(runs: Sequence[ComparedRun]) -> dict[int, float]:
    return {run.config.seed: run.result.value for run in runs if run.result is not None}


def _mean(numbers: Iterable[float | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return sum(known) / len(known) if known else None


def differing(configs: Sequence[RunConfig]) -> dict[str, tuple[str, ...]]:
    """Dotted settings that are not the same in all, as text; only those that decide a result."""
    flat = [_flat(to_dict(config)) for config in configs]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    rows = {key: tuple(str(settings.get(key, "-")) for settings in flat) for key in keys}
    return {
        key: values
        for key, values in rows.items()
        if len(set(values)) > 1
        and not any(key == name or key.startswith(f"{name}.") for name in NOT_PART)
    }


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            found.update(_flat(value, f"{prefix}{key}."))
        else:
            found[prefix + key] = value
    return found


FINAL = "Final: the last weights on the test split"
BEST = "; best: those with the best validation metric"
REST = (
    "; at: the bits of the evaluation. Several seeds: mean ± standard deviation. Cost: training "
    "BitOPs, the first finished row's = 1."
)


def comparison_tables(comparison: Comparison) -> tuple[Table, ...]:
    """The results; differences to the first row and settings that differ, where there are any."""
    tables = (_results(comparison), _differences(comparison), _settings(comparison))
    return tuple(table for table in tables if table.rows)


def _results(comparison: Comparison) -> Table:
    metrics = {_metric(entry) for entry in comparison.entries}
    has_best = any(entry.best for entry in comparison.entries)
    common = metrics.pop() if len(metrics) == 1 else None
    rows = [
        (
            entry.name,
            _seeds(entry.seeds),
            _steps(entry),
            "" if common else _metric(entry),
            summary_text(entry.final) if entry.final else "",
            summary_text(entry.best) if entry.best else "",
            _evaluated(entry),
            cost_text(entry.relative_cost) if entry.relative_cost is not None else "",
            _time(entry),
            state_text(entry) if entry.num_unfinished else "",
        )
        for entry in comparison.entries
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
        for e in comparison.entries
        if e.difference is not None
    ]
    names = ("run", "difference (95 % interval)", "pairs", "p")
    return Table(
        name="differences",
        title=f"Final value minus that of {comparison.entries[0].name}, over common seeds",
        columns=tuple(("", name) for name in names),
        rows=tuple(rows),
        is_number=(False, True, True, True),
    )


def _settings(comparison: Comparison) -> Table:
    return Table(
        name="settings",
        title="Settings that differ",
        columns=(("", "setting"), *(("", entry.name) for entry in comparison.entries)),
        rows=tuple((key, *values) for key, values in comparison.differing.items()),
        is_number=(False,) * (1 + len(comparison.entries)),
    )


def _metric(entry: Compared) -> str:
    unit = UNITS.get(entry.metric, "").strip()
    return f"{entry.metric}, {unit}" if unit else entry.metric


def _evaluated(entry: Compared) -> str:
    """The bits of the evaluation."""
    results = [run.result for run in entry.runs if run.result is not None]
    return ", ".join(dict.fromkeys(result.eval_precision for result in results))


def _seeds(seeds: tuple[int, ...]) -> str:
    """Runs of neighbours as ranges.

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


def _steps(entry: Compared) -> str:
    steps = sorted({run.step for run in entry.runs})
    reached = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
    total = entry.config.steps
    return f"{reached} of {total:,}" if entry.num_unfinished and total is not None else reached


def _time(entry: Compared) -> str:
    """The mean of a run."""
    seconds = [run.seconds for run in entry.runs if run.seconds is not None]
    return duration(sum(seconds) / len(seconds)) if seconds else ""


def duration(seconds: float) -> str:
    """Two units at most.

    >>> duration(4.21), duration(75), duration(7384)
    ('4.2 s', '1 min 15 s', '2 h 3 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def state_text(entry: Compared) -> str:
    """`finished`, or what is not."""
    if not entry.num_unfinished:
        return "finished"
    if len(entry.runs) == 1:
        return "not finished"
    return f"{entry.num_unfinished} of {len(entry.runs)} not finished"


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Unrounded, for scripts."""
    return {
        "runs": [
            {
                "name": entry.name,
                "seeds": list(entry.seeds),
                "directories": [str(run.directory) for run in entry.runs],
                "state": state_text(entry),
                "steps": [run.step for run in entry.runs],
                "metric": entry.metric,
                "values": [None if run.result is None else run.result.value for run in entry.runs],
                "final": asdict(entry.final) if entry.final else None,
                "best": asdict(entry.best) if entry.best else None,
                "eval_precision": [
                    None if run.result is None else run.result.eval_precision for run in entry.runs
                ],
                "difference": asdict(entry.difference) if entry.difference else None,
                "bitops": [run.bitops for run in entry.runs],
                "relative_cost": entry.relative_cost,
                "seconds": [run.seconds for run in entry.runs],
            }
            for entry in comparison.entries
        ],
        "differing": {key: list(values) for key, values in comparison.differing.items()},
    }
