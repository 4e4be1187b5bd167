"""`bitcycle compare`: results and settings of runs on disk, side by side.

`compare_runs` reads run folders and groups the seeds of one configuration; of runs of one seed it
compares the weights. `comparison_tables` and `comparison_json` are the two outputs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

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
from bitcycle.train.checkpoint import Checkpoints
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
    """Read run folders and group the seeds of one configuration.

    A run that repeats a configuration and a seed is in a group of its own. Folders count once.
    """
    found = [_read(path) for path in dict.fromkeys(Path(folder).resolve() for folder in folders)]
    if not found:
        raise ValueError("nothing to compare: give the folders of runs, such as runs/*")
    by_config: dict[tuple[str, int], list[RecordedRun]] = {}
    repeated: Counter[tuple[str, int]] = Counter()
    for run in found:
        key = config_id(run.config)
        by_config.setdefault((key, repeated[key, run.config.seed]), []).append(run)
        repeated[key, run.config.seed] += 1
    seeds = [tuple(sorted(runs, key=lambda r: r.config.seed)) for runs in by_config.values()]
    base = next((cost for runs in seeds if (cost := _finished_cost(runs)) is not None), None)
    groups = tuple(
        _group(name, runs, seeds[0], base) for name, runs in zip(_names(seeds), seeds, strict=True)
    )
    return Comparison(
        groups=groups,
        differing=differing_settings([runs[0].config for runs in seeds]),
        weights=_compare_all_weights(groups),
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


# -- weights --------------------------------------------------------------------------------------


def _compare_all_weights(groups: Sequence[SeedGroup]) -> tuple[WeightComparison, ...]:
    """Compare runs of one configuration and seed; of two runs only the seed must be equal."""
    runs = [(group.name, run) for group in groups for run in group.runs]
    found = []
    for i, (name, run) in enumerate(runs):
        for other_name, other in runs[:i]:
            is_repeated = config_id(run.config) == config_id(other.config)
            if run.config.seed == other.config.seed and (is_repeated or len(runs) == 2):
                found.append(_compare_weights(name, run, other_name, other))
                break  # with the first of them
    return tuple(found)


def _compare_weights(
    name: str, run: RecordedRun, other_name: str, other: RecordedRun
) -> WeightComparison:
    """Compare the tensors of two runs' last checkpoints."""
    newest = [Checkpoints(each.directory / "checkpoints").read_newest("model")
              for each in (run, other)]  # fmt: skip
    compared = WeightComparison(
        run=name,
        other=other_name,
        seed=run.config.seed,
        steps=(newest[0] and newest[0][0], newest[1] and newest[1][0]),
    )
    if newest[0] is None or newest[1] is None or compared.steps[0] != compared.steps[1]:
        return compared
    own, others = newest[0][1], newest[1][1]
    if {n: x.shape for n, x in own.items()} != {n: x.shape for n, x in others.items()}:
        return compared
    differing = [name for name in own if not is_bit_equal(own[name], others[name])]
    largest = {name: largest_difference(own[name], others[name]) for name in differing}
    return replace(compared, num_tensors=len(own), largest=largest)


def largest_difference(x: Tensor, y: Tensor) -> float:
    """The largest difference of two tensors of one shape; 0 if they are empty."""
    return float((x.double() - y.double()).abs().max()) if x.numel() else 0.0


def is_bit_equal(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors have the same type and bits; NaNs may be equal, 0 and -0 are not."""
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    flat = (t.contiguous().reshape(-1).view(torch.uint8) for t in (x, y))
    return torch.equal(*flat)


@dataclass(frozen=True, kw_only=True)
class WeightComparison:
    """The weights of two runs of one seed. largest: the largest difference by tensor that differs.

    steps: of the checkpoints; None: there is none. num_tensors: None if they are not comparable.
    """

    run: str
    other: str
    seed: int
    steps: tuple[int | None, int | None]
    num_tensors: int | None = None
    largest: dict[str, float] = field(default_factory=dict)

    @property
    def is_equal(self) -> bool | None:
        """Whether all weights are equal, bit for bit; None if they cannot be compared."""
        return None if self.num_tensors is None else not self.largest

    def __str__(self) -> str:
        if None in self.steps:
            without = self.run if self.steps[0] is None else self.other
            return f"not compared: {without} has no checkpoint"
        if self.steps[0] != self.steps[1]:
            return f"not compared: checkpoints of steps {self.steps[0]} and {self.steps[1]}"
        if self.num_tensors is None:
            return "not compared: the models have other tensors"
        if not self.largest:
            return f"equal, bit for bit ({self.num_tensors} tensors)"
        # a NaN is larger than all
        name = max(self.largest, key=lambda n: (math.isnan(self.largest[n]), self.largest[n]))
        return (
            f"differ in {len(self.largest)} of {self.num_tensors} tensors, most in {name}: by "
            f"{self.largest[name]:.3g}"
        )


# -- the comparison -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Configurations in order. differing: setting -> its value in each configuration.

    weights: of runs of one seed, compared with the first of them.
    """

    groups: tuple[SeedGroup, ...]
    differing: dict[str, tuple[str, ...]]
    weights: tuple[WeightComparison, ...] = ()


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
    """The results, the differences to the first row, weights, and the settings that differ."""
    tables = (
        _results(comparison), _differences(comparison), _weights(comparison), _settings(comparison),
    )  # fmt: skip
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


def _weights(comparison: Comparison) -> Table:
    names = ("run", "compared with", "seed", "step", "weights")
    return Table(
        name="weights",
        title="Weights of the last checkpoints",
        columns=tuple(("", name) for name in names),
        rows=tuple(
            (
                w.run,
                w.other,
                str(w.seed),
                str(w.steps[0] if w.is_equal is not None else "-"),
                str(w),
            )
            for w in comparison.weights
        ),
        is_number=(False, False, True, True, False),
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
        "weights": [
            {
                **asdict(each),
                "largest": {n: x if math.isfinite(x) else None for n, x in each.largest.items()},
                "is_equal": each.is_equal,
            }
            for each in comparison.weights
        ],
        "differing": {key: list(values) for key, values in comparison.differing.items()},
    }
