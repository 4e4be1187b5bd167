"""What a reader of a study's table must know: how the set-up differs from the published one."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bitcycle.analysis.numbers import (
    DECIMALS,
    UNITS,
    bitops_text,
    correlation_text,
    cost_text,
    decimals_for,
    difference_text,
    fixed,
    interval_text,
    p_text,
    summary_text,
)
from bitcycle.files import write_text
from bitcycle.study.headline import headline
from bitcycle.study.results import MethodResult, StudyResult
from bitcycle.study.study import Method
from bitcycle.study.summary import (
    Budget,
    GroupSummary,
    Row,
    budgets,
    cost_relation,
    published_cost,
    published_difference,
    published_relative_cost,
    published_values,
    sources,
    summarize,
    variance_rows,
)
from bitcycle.tables import Table, escape_markdown, to_latex, to_markdown, without_empty_columns


def caption(result: StudyResult) -> str:
    """Set-up (scale, steps, seeds, evaluation bits), sources, notes and what is not done."""
    parts = [setup(result), *_published(result), *result.study.notes, *unfinished(result)]
    return " ".join(f"{part[:1].upper()}{part[1:].rstrip('.')}." for part in parts)


def setup(result: StudyResult) -> str:
    """Ours in one sentence: what is trained, for how long, with how many seeds."""
    configs = [row.method.config for row in result.methods]
    what = _listed(f"{config.model.name} on {config.data.name}" for config in configs)
    seeds = len(result.study.seeds)
    bits = _listed(run.eval_precision for row in result.methods for run in row.results.values())
    evaluated = f", evaluated at {bits}" if bits else ""
    scale = " (reduced scale)" if result.study.scale == "small" else ""
    return (
        f"Ours: {what}, {_length(result)}, {seeds} seed{'s' if seeds > 1 else ''}{evaluated}{scale}"
    )


def _length(result: StudyResult) -> str:
    steps = {run.steps for row in result.methods for run in row.results.values()}
    planned = [row.method.config for row in result.methods if not row.results]
    steps |= {config.steps for config in planned if config.steps is not None}
    texts = [f"{number:,}" for number in sorted(steps)]
    if len(texts) > 3:
        texts = [f"{texts[0]} to {texts[-1]}"]
    *some, last = texts or [""]
    lengths = [f"{', '.join(some)} or {last} steps" if some else f"{last} steps"] if last else []
    lengths += sorted({f"{c.epochs:g} epochs" for c in planned if c.epochs is not None})
    return ", ".join(lengths)


def _published(result: StudyResult) -> list[str]:
    where = sources(result)
    if not where:
        return []
    warning = "" if result.study.scale == "full" else ", a larger set-up: compare differences"
    return [f"Published: {', '.join(where)}{warning}"]


def unfinished(result: StudyResult) -> list[str]:
    """A sentence for the runs without a result; none when all are done."""
    counts = {
        "failed": result.count("failed"),
        "started and not finished": result.count("started"),
        "missing": result.count("missing"),
    }
    said = ", ".join(f"{n} {state}" for state, n in counts.items() if n)
    return [f"Of {result.num_runs} runs {said}"] if said else []


def states_text(method: MethodResult) -> str:
    """What of a method is not done, such as `1 failed, 2 missing`; empty when all is.

    >>> states_text(MethodResult(method=None, runs=()))
    ''
    """
    words = {"failed": "failed", "started": "unfinished", "missing": "missing"}
    counts = ((method.count(state), word) for state, word in words.items())  # type: ignore[arg-type]
    return ", ".join(f"{number} {word}" for number, word in counts if number)


def _listed(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(texts))


Cell = tuple[GroupSummary, Row]


def metric_heading(group: GroupSummary) -> str:
    """The metric with its unit."""
    unit = UNITS.get(group.metric, "").strip()
    return f"{group.metric}, {unit}" if unit else group.metric


def paper_table(groups: Sequence[GroupSummary]) -> Table:
    """Rows and columns as published; in each column ours beside the published value."""
    cells: dict[tuple[str, str], list[Cell]] = {}
    for group in groups:
        for row in group.rows:
            cells.setdefault(place_of(row.method.method, group), []).append((group, row))
    lines = list(dict.fromkeys(line for line, _ in cells))
    columns = list(dict.fromkeys(column for _, column in cells))
    body = []
    for line in lines:
        row_cells = [cells.get((line, column), []) for column in columns]
        texts = [text for cell in row_cells for text in (_ours(cell), _theirs(cell))]
        everything = [entry for cell in row_cells for entry in cell]
        body.append((line, *texts, _our_cost(everything), _their_cost(everything)))
    headings = [(column, side) for column in columns for side in ("ours", "published")]
    cost = "training cost"
    has_published = any(_theirs(cell) for cell in cells.values())
    return without_empty_columns(
        Table(
            name="paper",
            title="Ours beside the published values" if has_published else "Results",
            columns=(("", "method"), *headings, (cost, "ours"), (cost, "published")),
            rows=tuple(body),
            is_number=(False, *[True] * (len(headings) + 2)),
        )
    )


def place_of(method: Method, group: GroupSummary) -> tuple[str, str]:
    """(row, column) of a method: the published one, or its label and its group."""
    if method.place is not None:
        return method.place
    return method.label, group.group or metric_heading(group)


def _ours(cell: Sequence[Cell]) -> str:
    return "; ".join(value_text(row) for _, row in cell)


def value_text(row: Row) -> str:
    """Mean and deviation; what became of the runs instead, or beside it, where some lack."""
    undone = states_text(row.method)
    if row.summary is None:
        return undone
    text = summary_text(row.summary)
    return f"{text} ({row.summary.n} of {len(row.method.runs)})" if undone else text


def _theirs(cell: Sequence[Cell]) -> str:
    found = [
        fixed(p.value, DECIMALS)
        for group, row in cell
        for p in published_values(row.method.method, group.metric)
    ]
    return "; ".join(dict.fromkeys(found))


def _our_cost(cells: Sequence[Cell]) -> str:
    found = [cost_text(row.relative_cost) for _, row in cells if row.relative_cost is not None]
    return ", ".join(dict.fromkeys(found))


def _their_cost(cells: Sequence[Cell]) -> str:
    found = []
    for group, row in cells:
        cost = published_relative_cost(row.method.method, baseline_method(group))
        if cost is not None:
            found.append(cost_text(cost))
    return ", ".join(dict.fromkeys(found))


def baseline_method(group: GroupSummary) -> Method | None:
    row = group.baseline_row
    return None if row is None else row.method.method


def values_table(groups: Sequence[GroupSummary]) -> Table:
    """Every method with its n, the interval of its mean, its cost and what is not done."""
    headings = {metric_heading(group) for group in groups}
    rows = [
        (
            group.group,
            row.label,
            metric_heading(group) if len(headings) > 1 else "",
            summary_text(row.summary) if row.summary else "",
            str(row.summary.n) if row.summary else "0",
            interval_text(row.summary.low, row.summary.high) if row.summary else "",
            cost_text(row.relative_cost) if row.relative_cost is not None else "",
            bitops_text(row.bitops).removesuffix("BitOPs") if row.bitops is not None else "",
            "yes" if row.is_on_front else "",
            states_text(row.method),
        )
        for group in groups
        for row in group.rows
    ]
    value = headings.pop() if len(headings) == 1 else "value"
    names = ("group", "method", "metric", value, "n", "95 % interval", "cost", "BitOPs", "front",
             "not done")  # fmt: skip
    return without_empty_columns(
        Table(
            name="values",
            title="Final values",
            columns=tuple(("", name) for name in names),
            rows=tuple(rows),
            is_number=tuple(name in (value, *names[4:8]) for name in names),
        )
    )


def differences_table(groups: Sequence[GroupSummary]) -> Table:
    """Every method against the baseline of its group, over the seeds that both have."""
    rows = []
    for group in groups:
        base = group.baseline_row
        for row in group.rows if base is not None else ():
            if row is base:
                continue
            published = published_difference(
                row.method.method, baseline_method(group), group.metric
            )
            difference = row.difference
            rows.append(
                (
                    group.group,
                    row.label,
                    str(group.baseline),
                    difference_text(difference) if difference else "",
                    str(difference.n) if difference else "0",
                    p_text(difference.p) if difference else "",
                    "" if published is None else fixed(published, 2, sign=True),
                )
            )
    names = ("group", "method", "against", "difference (95 % interval)", "pairs", "p", "published")
    return without_empty_columns(
        Table(
            name="differences",
            title="Differences",
            columns=tuple(("", name) for name in names),
            rows=tuple(rows),
            is_number=(False, False, False, True, True, True, True),
        )
    )


def budget_table(groups: Sequence[GroupSummary]) -> Table:
    """The best mean within the cost of each method."""
    rows = []
    for group in groups:
        base = group.baseline_row
        for budget in _telling(group):
            relative = budget.bitops / base.bitops if base is not None and base.bitops else None
            rows.append(
                (
                    group.group,
                    bitops_text(budget.bitops),
                    cost_text(relative) if relative is not None else "",
                    budget.best.label,
                    summary_text(budget.best.summary),
                )
            )
    return without_empty_columns(
        Table(
            name="budgets",
            title="Best within a budget",
            columns=(("", "group"), ("", "budget"), ("", "cost"), ("", "best"), ("", "value")),
            rows=tuple(rows),
            is_number=(False, True, True, False, True),
        )
    )


def _telling(group: GroupSummary) -> list[Budget]:
    """The budgets from which on another method is best, and the baseline's."""
    found: list[Budget] = []
    base = group.baseline_row
    best: Row | None = None
    for budget in budgets(group):
        if budget.best is not best or (base is not None and budget.bitops == base.bitops):
            found.append(budget)
        best = budget.best
    return found


def variance_table(groups: Sequence[GroupSummary]) -> Table:
    """Standard deviations beside the baseline's, with a Brown-Forsythe test."""
    rows = [
        (
            group.group,
            row.label,
            fixed(row.std, decimals_for(row.std)),
            f"{fixed(row.baseline_std, decimals_for(row.baseline_std))} ({group.baseline})",
            "-" if row.test is None else fixed(row.test.statistic, 2),
            "-" if row.test is None else p_text(row.test.p),
        )
        for group in groups
        for row in variance_rows(group)
    ]
    return without_empty_columns(
        Table(
            name="variance",
            title="Spread over seeds (Brown-Forsythe test)",
            columns=(
                ("", "group"), ("", "method"), ("deviation", "own"),
                ("deviation", "baseline's"), ("test", "F"), ("test", "p"),
            ),
            rows=tuple(rows),
            is_number=(False, False, True, True, True, True),
        )
    )  # fmt: skip


def relation_table(groups: Sequence[GroupSummary]) -> Table:
    """Rank correlation of cost and final metric, and the Pareto front."""
    rows = []
    for group in groups:
        relation = cost_relation(group)
        number = str(relation.correlation.n)
        rows.append(
            (group.group, number, correlation_text(relation.correlation), ", ".join(relation.front))
        )
    return without_empty_columns(
        Table(
            name="relation",
            title="Training cost and final metric",
            columns=(
                ("", "group"), ("", "schedules"), ("", "rank correlation (95 % interval)"),
                ("", "on the Pareto front"),
            ),
            rows=tuple(rows),
            is_number=(False, True, True, False),
        )
    )  # fmt: skip


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


VALUES = (
    "Final values, never the best of a run: mean ± standard deviation over n seeds; the interval "
    "is of the mean. Cost: training BitOPs, the baseline's = 1. Front: no other method is cheaper "
    "and better."
)
DIFFERENCES = (
    "Paired over the seeds that both methods have; p is of the paired t-test, not corrected for "
    "the number of methods."
)
PUBLISHED = " Published: the difference of the published values."
BUDGET = (
    "The best mean among the methods that cost no more than the budget; a line holds up to the "
    "next. Chosen among several, it is on the lucky side."
)
VARIANCE = (
    "Brown-Forsythe: the distances to the group's median compared; it needs three seeds of each, "
    "and sees little with fewer than ten."
)
RELATION = (
    "Spearman's correlation of training cost and mean final metric over the methods whose bits "
    "change, positive when dearer is better; interval by Fisher's z with Bonett and Wright's "
    "variance."
)


def study_tables(result: StudyResult) -> tuple[Table, ...]:
    """The paper's shape first, then the statistics; tables with nothing to say are left out."""
    return tuple(
        replace(table, name=f"{result.study.name}-{table.name}") for table in _tables(result)
    )


def _tables(result: StudyResult) -> Iterator[Table]:
    groups = summarize(result)
    text = f"{VALUES} {caption(result)}"
    if result.study.kind != "critical-periods":  # its groups share no rows
        yield replace(paper_table(groups), caption=caption(result))
        text = VALUES
    yield replace(values_table(groups), caption=text)
    differences = differences_table(groups)
    if differences.rows:
        published = PUBLISHED if "published" in differences.headings else ""
        yield replace(differences, caption=DIFFERENCES + published)
    if result.study.kind == "suite":
        yield replace(relation_table(groups), caption=RELATION)
    several = tuple(group for group in groups if _num_costs(group) > 1)
    if several and result.study.kind != "critical-periods":
        yield replace(budget_table(several), caption=BUDGET)
    spread = replace(variance_table(groups), caption=VARIANCE)
    if spread.rows and result.study.kind == "comparison":
        yield spread


def _num_costs(group: GroupSummary) -> int:
    return len({row.bitops for row in group.done})


def to_markdown_page(result: StudyResult) -> str:
    """All tables under the study's name and its answer."""
    study = result.study
    name, what, answer = map(escape_markdown, (study.name, study.description, headline(result)))
    intro = f"# {name}\n\n{what}\n\n**{answer}**\n"
    return "\n".join([intro, *map(to_markdown, study_tables(result))])


def write_tables(result: StudyResult) -> list[Path]:
    """table.md, table.csv and table.tex in the study's folder, each whole or not at all."""
    texts = {
        "table.md": to_markdown_page(result),
        "table.csv": to_csv(result),
        "table.tex": "\n".join(map(to_latex, study_tables(result))),
    }
    result.folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_text(result.folder / name, text)
    return [result.folder / name for name in texts]
