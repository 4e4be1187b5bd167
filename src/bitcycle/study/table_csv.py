"""A study's numbers unrounded, one line per method: what a script reads."""

from __future__ import annotations

import csv
import io
from typing import Any

from bitcycle.study.published import published_cost, published_values
from bitcycle.study.results import StudyResult
from bitcycle.study.summary import GroupSummary, Row, summarize


def to_csv(result: StudyResult) -> str:
    """Every method of every group; an empty cell is a number there is not."""
    lines = [_line(result, group, row) for group in summarize(result) for row in group.rows]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return buffer.getvalue()


def _line(result: StudyResult, group: GroupSummary, row: Row) -> dict[str, Any]:
    summary, difference, method = row.summary, row.difference, row.method
    done = list(method.results.values())
    place = method.method.place or (row.label, group.group)
    published = published_values(method.method, group.metric)
    return {
        "study": result.study.name,
        "group": group.group,
        "method": row.label,
        "row": place[0],
        "column": place[1],
        "at": method.method.at,
        "metric": group.metric,
        "n": len(done),
        "mean": None if summary is None else summary.mean,
        "std": None if summary is None else summary.std,
        "low": None if summary is None else summary.low,
        "high": None if summary is None else summary.high,
        "published": "; ".join(f"{p.value:g}" for p in published),
        "baseline": group.baseline,
        "difference": None if difference is None else difference.mean,
        "difference_low": None if difference is None else difference.low,
        "difference_high": None if difference is None else difference.high,
        "p": None if difference is None else difference.p,
        "pairs": None if difference is None else difference.n,
        "bitops": row.bitops,
        "relative_cost": row.relative_cost,
        "published_gbitops": published_cost(method.method),
        "is_on_front": row.is_on_front,
        "eval_precision": "; ".join(sorted({run.eval_precision for run in done})),
        "steps": "; ".join(str(steps) for steps in sorted({run.steps for run in done})),
        "seeds": " ".join(str(seed) for seed in sorted(method.results)),
        **{state: method.count(state) for state in ("failed", "started", "missing")},
    }
