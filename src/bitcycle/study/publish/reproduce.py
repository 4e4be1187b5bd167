"""The tables of docs/reproduce.md: which command gives which table, and what has been run here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bitcycle.study.numbers import bitops_text
from bitcycle.study.publish.restore import Evidence
from bitcycle.study.table_text import Table, markdown_rows

HOUR, DAY, YEAR = 3600.0, 86_400.0, 365 * 86_400.0


def reproduce_table(
    data: Mapping[str, Any], published: Sequence[Evidence], scale: str, *, folder: str
) -> str:
    """A row for each study of a scale; `folder`: of the pages, as the reader sees it."""
    known = {evidence.study.name: evidence for evidence in published}
    rows = tuple(
        (
            row["name"],
            row["description"],
            ", ".join(row["data"]) or "built in",
            str(row["runs"]),
            _bitops(row, known.get(row["name"])),
            _time(row, known.get(row["name"])),
            _run_here(row["runs"], known.get(row["name"])),
        )
        for row in data["studies"]
        if row["scale"] == scale
    )
    names = ("study", "what it answers", "data", "runs", "BitOPs", "time", "run here")
    table = Table(
        name=f"reproduce-{scale}",
        title="",
        columns=tuple(("", name) for name in names),
        rows=rows,
        is_number=(False, False, False, True, True, True, False),
    )
    return markdown_rows(
        table, first=lambda name: f"[`{name}`]({folder}{name}.md)" if name in known else f"`{name}`"
    )


def machine_sentence(data: Mapping[str, Any]) -> str:
    """Where the times come from."""
    machine = data["machine"]
    return (
        f"Times are of one core of {machine['processor']} ({machine['cpu_capability']}), torch "
        f"{machine['torch']}: measured where a study was run here, otherwise estimated (about) "
        "from the processor time of a step on random inputs, without evaluations. A measured time "
        "is that of the fastest run of each method, times its seeds, since the machine did other "
        "work too; the pages have all of it. BitOPs are those of all runs together, counted where "
        "a study was run here, otherwise derived, as if every batch were full."
    )


def _bitops(row: Mapping[str, Any], evidence: Evidence | None) -> str:
    """Counted, where as many runs as the study has by itself were made."""
    if evidence is not None and _is_complete(row["runs"], evidence):
        counted = [method.bitops or 0.0 for method in evidence.result.methods]
        return bitops_text(sum(counted) / len(counted) * row["runs"])
    number = row["without_bitops"]
    return bitops_text(row["bitops"]) + (f" ({number} runs not counted)" if number else "")


def _is_complete(num_runs: int, evidence: Evidence) -> bool:
    """Whether every method has at least its share of the study's own runs."""
    methods = evidence.result.methods
    return all(len(method.results) * len(methods) >= num_runs for method in methods)


def _time(row: Mapping[str, Any], evidence: Evidence | None) -> str:
    seconds = _measured(row["runs"], evidence)
    if seconds is not None:
        return human(seconds)
    if row["without_time"] >= row["runs"]:
        return "unknown"
    more = f" ({row['without_time']} runs not timed)" if row["without_time"] else ""
    return f"about {human(row['seconds'])}{more}"


def _measured(num_runs: int, evidence: Evidence | None) -> float | None:
    """Of as many runs as the study has by itself, where at least those were made.

    From the fastest run of each method: the machine did other work too.
    """
    if evidence is None or not _is_complete(num_runs, evidence):
        return None
    fastest = [min(run.seconds for run in row.results.values()) for row in evidence.result.methods]
    return sum(fastest) / len(fastest) * num_runs


def _run_here(num_runs: int, evidence: Evidence | None) -> str:
    if evidence is None or not evidence.result.count("done"):
        return "no"
    done = evidence.result.count("done")
    if not _is_complete(num_runs, evidence):
        share = num_runs // len(evidence.result.methods)
        done = sum(min(len(method.results), share) for method in evidence.result.methods)
        return f"{done} of {num_runs}"
    return "all" if done == num_runs else f"all ({done} with more seeds)"


def human(seconds: float) -> str:
    """Two digits of what takes from seconds to years.

    >>> [human(s) for s in (8, 200, 5000, 200_000, 4e7)]
    ['8 s', '3 min', '1.4 h', '2.3 days', '1.3 years']
    """
    for size, unit in ((YEAR, "years"), (DAY, "days"), (HOUR, "h")):
        if seconds >= size:
            number = seconds / size
            return f"{number:.1f} {unit}" if number < 10 else f"{number:,.0f} {unit}"
    return f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"
