"""Where a study stands: a row per method, and what failed or is at work."""

from __future__ import annotations

from bitcycle.study.attempt import is_held
from bitcycle.study.moment import read_moment
from bitcycle.study.progress import title
from bitcycle.study.results import MethodResult, RunState, StudyResult
from bitcycle.tables import text_table
from bitcycle.train.directory import RunDirectory


def status_text(result: StudyResult) -> str:
    """The table and the details below it."""
    header = ("method", "done", "started", "failed", "missing", "metric", "mean")
    rows = [_row(row, result) for row in result.methods]
    states = {s.directory: s for row in result.methods for s in row.runs}.values()
    parts = [
        text_table(header, rows, right=(1, 2, 3, 4, 6)),
        "",
        f"{sum(s.state == 'done' for s in states)} of {len(states)} runs done, below "
        f"{result.output}",
        *(_started(state) for state in states if state.state == "started"),
    ]
    if result.count("failed"):
        parts.append(failures_text(result))
    return "\n".join(parts)


def failures_text(result: StudyResult) -> str:
    """Every failed run with its error, and what to do."""
    states = {s.directory: s for row in result.methods for s in row.runs if s.state == "failed"}
    lines = [f"failed: {title(state.run)}: {state.error}" for state in states.values()]
    number = f"{len(lines)} run{'' if len(lines) == 1 else 's'} failed"
    return "\n".join([*lines, f"{number}; --retry-failed tries again"])


def _row(row: MethodResult, result: StudyResult) -> tuple[str, ...]:
    counts = [row.count(state) for state in ("done", "started", "failed", "missing")]
    values = list(row.values.values())
    mean = f"{sum(values) / len(values):.2f}" if values else "-"
    metric = result.study.metric(row.method.group)
    return (row.method.key, *map(str, counts), metric, mean)


def _started(state: RunState) -> str:
    at_work = is_held(RunDirectory(state.directory))
    how = "at work" if at_work else "interrupted, goes on from its checkpoint"
    return f"{how}: {title(state.run)}: {read_moment(state.run).text()}"
