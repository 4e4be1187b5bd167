"""A comparison of runs as tables and as plain data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from bitcycle.study.compare import Compared, Comparison
from bitcycle.study.numbers import UNITS, cost_text, difference_text, p_text, summary_text
from bitcycle.study.table_text import Table, without_empty_columns

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
