"""The tables of a study, and the files they are written to: table.md, table.csv, table.tex.

`study_tables` makes them: first the published table's rows and columns (`paper_table`), then
values, differences, correlation and budgets. Terminal, Markdown and LaTeX show the same
tables. The CSV has unrounded numbers.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bitcycle.files import write_text
from bitcycle.tables import (
    Table,
    escape_markdown,
    to_latex,
    to_markdown,
    with_caption,
    without_empty_columns,
)
from bitcycle_lab.study.number_text import (
    DECIMALS,
    bitops_texts,
    correlation_text,
    cost_decimals,
    cost_text,
    difference_text,
    fixed,
    interval_text,
    p_text,
    summary_text,
)
from bitcycle_lab.study.results import MethodResult, State, StudyResult
from bitcycle_lab.study.statistics import holm
from bitcycle_lab.study.study import Method
from bitcycle_lab.study.summary import (
    Decimals,
    GroupSummary,
    MethodSummary,
    best_by_budget,
    column_decimals,
    cost_correlation,
    metric_title,
    published_difference,
    published_relative_cost,
    published_value,
    published_values,
    study_notes,
    summarize,
)

Cells = Mapping[Any, str]  # of a row: heading, or (heading above, heading) -> text

TEXT_COLUMNS = ("group", "method", "metric", "against", "best", "front", "on the Pareto front",
                "verdict", "after Holm", "not done")  # fmt: skip
VALUES = "Final values, never the best of a run{spread}."
SPREAD = ": mean ± standard deviation over n seeds"
VALUES_COLUMNS = {
    "95 % interval": "The interval is of the mean.",
    "cost": "Cost: training BitOPs, the baseline's = 1.",
    "front": "Front: no other method is cheaper and better.",
}
DIFFERENCES = "Paired over the seeds that both methods have."
VERDICT = (
    "Verdict: better or worse if the interval excludes 0; no different if it lies within the "
    "margin{margin}; otherwise undecided, with the number of seeds that would decide."
)
DIFFERENCES_COLUMNS = {
    "p": "p is of the paired t-test, not corrected for the number of methods.",
    "after Holm": (
        "After Holm: whether better or worse survives the correction for the number of rows."
    ),
    "published": "Published: the difference of the published values.",
}
BUDGET = (
    "The best mean among the methods that cost no more than the budget; a line holds up to the "
    "next. The best of several means is biased upwards."
)
RELATION = (
    "Spearman's correlation of training cost and mean final metric over the methods whose bits "
    "change, positive when more expensive is better; interval by Fisher's z with Bonett and "
    "Wright's variance."
)


def study_tables(result: StudyResult) -> tuple[Table, ...]:
    """The tables of a study; tables without rows are left out."""
    return tuple(
        replace(table, name=f"{result.study.name}-{table.name}") for table in _tables(result)
    )


def _tables(result: StudyResult) -> Iterator[Table]:
    groups, kind = summarize(result), result.study.kind
    values = values_table(groups)
    if kind == "critical-periods":  # its groups share no rows
        yield replace(values, caption=f"{values.caption} {caption(result)}")
    else:
        yield replace(paper_table(groups), caption=caption(result))
        yield values
    if (differences := differences_table(groups)).rows:
        yield differences
    if kind == "suite":
        yield correlation_table(groups)
    several = [group for group in groups if len({each.bitops for each in group.done}) > 1]
    if several and kind != "critical-periods":
        yield budget_table(several)


def write_tables(result: StudyResult) -> list[Path]:
    """Write table.md, table.csv and table.tex to the study's folder."""
    texts = {
        "table.md": to_markdown_page(result),
        "table.csv": to_csv(result),
        "table.tex": "\n".join(map(to_latex, study_tables(result))),
    }
    result.folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_text(result.folder / name, text)
    return [result.folder / name for name in texts]


def to_markdown_page(result: StudyResult) -> str:
    """All tables under the study's name and description."""
    study = result.study
    name, what = map(escape_markdown, (study.name, study.description))
    intro = f"# {name}\n\n{what}\n"
    return "\n".join([intro, *map(to_markdown, study_tables(result))])


# -- the tables -----------------------------------------------------------------------------------


def _table(name: str, title: str, rows: Iterable[Cells], caption: str = "") -> Table:
    """A table without columns of "-" and nothing. All but `TEXT_COLUMNS` hold numbers."""
    rows = list(rows)
    headings = [key if isinstance(key, tuple) else ("", key) for key in rows[0]] if rows else []
    return without_empty_columns(
        Table(
            name=name,
            title=title,
            columns=tuple(headings),
            rows=tuple(tuple("" if c == "-" else c for c in row.values()) for row in rows),
            is_number=tuple(heading not in TEXT_COLUMNS for _, heading in headings),
            caption=caption,
        )
    )


def paper_table(groups: Sequence[GroupSummary]) -> Table:
    """Rows and columns as published; each column has our value and the published one."""
    cells: dict[tuple[str, str], list[tuple[GroupSummary, MethodSummary]]] = {}
    for group in groups:
        for each in group.methods:
            place = each.method.place or (each.label, group.group or metric_title(group.metric))
            cells.setdefault(place, []).append((group, each))
    rows = []
    decimals, of_costs = _decimals(groups), _cost_decimals(groups)
    for line in dict.fromkeys(line for line, _ in cells):
        row: dict[Any, str] = {"method": line}
        inside = []
        for column in dict.fromkeys(column for _, column in cells):
            cell = cells.get((line, column), [])
            inside += cell
            texts = [value_text(each, decimals[group.metric].value) for group, each in cell]
            row[column, "ours"] = "; ".join(texts)
            row[column, "published"] = _listed(
                [
                    fixed(p.value, DECIMALS)
                    for group, each in cell
                    for p in published_values(each.method, group.metric)
                ],
                "; ",
            )
        costs = [each.relative_cost for _, each in inside]
        published = [published_relative_cost(e.method, _baseline(group)) for group, e in inside]
        for heading, found in (("ours", costs), ("published", published)):
            texts = [cost_text(cost, of_costs) for cost in found if cost is not None]
            row["training cost", heading] = _listed(texts)
        rows.append(row)
    has_published = any(
        published_values(each.method, group.metric) for group in groups for each in group.methods
    )
    title = "Our values and the published ones" if has_published else "Results"
    return _table("paper", title, rows)


def value_text(method: MethodSummary, decimals: int | None = None) -> str:
    """Mean and deviation, with the number of runs if some are not done; their states otherwise."""
    unfinished = states_text(method.result)
    if method.summary is None:
        return unfinished
    text = summary_text(method.summary, decimals)
    return f"{text} ({method.summary.n} of {len(method.result.runs)})" if unfinished else text


def states_text(method: MethodResult) -> str:
    """The runs of a method that are not done, such as `1 failed, 2 missing`; empty if all are.

    >>> states_text(MethodResult(method=None, runs=()))
    ''
    """
    return _states(method, {"failed": "failed", "started": "unfinished", "missing": "missing"})


def _states(result: MethodResult | StudyResult, words: Mapping[State, str]) -> str:
    return ", ".join(f"{n} {word}" for state, word in words.items() if (n := result.count(state)))


def _baseline(group: GroupSummary) -> Method | None:
    return None if group.baseline_method is None else group.baseline_method.method


def _decimals(groups: Sequence[GroupSummary]) -> dict[str, Decimals]:
    """By metric, the decimals of columns."""
    rows: dict[str, list[MethodSummary]] = {}
    for group in groups:
        rows.setdefault(group.metric, []).extend(group.methods)
    return {metric: column_decimals(methods) for metric, methods in rows.items()}


def _cost_decimals(groups: Sequence[GroupSummary]) -> int:
    return cost_decimals(each.relative_cost for group in groups for each in group.methods)


def values_table(groups: Sequence[GroupSummary]) -> Table:
    """Every method: mean, n, the interval of the mean, cost and the runs that are not done."""
    titles = {metric_title(group.metric) for group in groups}
    value = next(iter(titles)) if len(titles) == 1 else "value"
    rows, of_costs = [], _cost_decimals(groups)
    for group in groups:
        decimals = _decimals(groups)[group.metric]
        bitops = bitops_texts([each.bitops for each in group.methods])
        for each, spent in zip(group.methods, bitops, strict=True):
            ends = (each.summary.low, each.summary.high) if each.summary else (None, None)
            rows.append(
                {
                    "group": group.group,
                    "method": each.label,
                    "metric": metric_title(group.metric) if len(titles) > 1 else "",
                    value: summary_text(each.summary, decimals.value),
                    "n": str(each.summary.n) if each.summary else "0",
                    "95 % interval": interval_text(*ends, decimals.interval),
                    "cost": cost_text(each.relative_cost, of_costs),
                    "BitOPs": spent.removesuffix("BitOPs"),
                    "front": "yes" if each.is_on_front else "",
                    "not done": states_text(each.result),
                }
            )
    has_spread = any(each.summary and each.summary.n > 1 for g in groups for each in g.methods)
    first = VALUES.format(spread=SPREAD if has_spread else "")
    return with_caption(_table("values", "Final values", rows), first, VALUES_COLUMNS)


def differences_table(groups: Sequence[GroupSummary]) -> Table:
    """Every method against the baseline of its group, over the seeds that both have."""
    rows = []
    survives = _surviving(groups)
    for group in groups:
        decimals = _decimals(groups)[group.metric].difference
        for each in group.methods if group.baseline_method is not None else ():
            if each is group.baseline_method:
                continue
            published = published_difference(each.method, _baseline(group), group.metric)
            difference = each.difference
            rows.append(
                {
                    "group": group.group,
                    "method": each.label,
                    "against": str(group.baseline),
                    "difference (95 % interval)": difference_text(difference, decimals),
                    "pairs": str(difference.n) if difference else "0",
                    "p": p_text(difference.p if difference else None),
                    "verdict": group.verdict(each),
                    "after Holm": survives.get((group.group, each.label), ""),
                    "published": "" if published is None else fixed(published, 2, sign=True),
                }
            )
    verdict = _verdict_caption(groups)
    table = _table("differences", "Differences", rows)
    return with_caption(table, DIFFERENCES, {"verdict": verdict, **DIFFERENCES_COLUMNS})


def _verdict_caption(groups: Sequence[GroupSummary]) -> str:
    """How to read the verdicts, with the margin if the groups have the same."""
    margins = {group.margin_text for group in groups if group.compared}
    text = VERDICT.format(
        margin=f" ({margins.pop()})" if len(margins) == 1 and all(margins) else ""
    )
    verdicts = {group.verdict(each) for group in groups for each in group.compared}
    return f"{text} Not finite: a run diverged." if "not finite" in verdicts else text


def _surviving(groups: Sequence[GroupSummary]) -> dict[tuple[str, str], str]:
    """By group and method, whether a difference beyond noise is significant after Holm."""
    pairs = [(group, each) for group in groups for each in group.compared]
    tested = [(group, each) for group, each in pairs if each.difference.p is not None]  # type: ignore[union-attr]
    stays = holm([each.difference.p for _, each in tested])  # type: ignore[misc, union-attr]
    return {
        (group.group, each.label): "yes" if stay else "no"
        for (group, each), stay in zip(tested, stays, strict=True)
        if group.is_better(each) is not None
    }


def correlation_table(groups: Sequence[GroupSummary]) -> Table:
    """Rank correlation of cost and final metric, and the Pareto front."""
    found = [(group, cost_correlation(group)) for group in groups]
    rows = [
        {
            "group": group.group,
            "schedules": str(correlation.n),
            "rank correlation (95 % interval)": correlation_text(correlation),
            "on the Pareto front": ", ".join(each.label for each in group.front),
        }
        for group, correlation in found
    ]
    return _table("relation", "Training cost and final metric", rows, RELATION)


def budget_table(groups: Sequence[GroupSummary]) -> Table:
    """The best method within a budget: a row where it changes, and one at the baseline's cost."""
    rows = []
    for group in groups:
        base, previous = group.baseline_method, None
        base_cost = None if base is None else base.bitops
        shown = []
        for bitops, best in best_by_budget(group):
            if best is not previous or bitops == base_cost:
                shown.append((bitops, best))
            previous = best
        costs = [bitops / base_cost if base_cost else None for bitops, _ in shown]
        decimals = column_decimals(best for _, best in shown).value
        budgets = bitops_texts([bitops for bitops, _ in shown])
        for (_, best), budget, cost in zip(shown, budgets, costs, strict=True):
            rows.append(
                {
                    "group": group.group,
                    "budget": budget,
                    "cost": cost_text(cost, cost_decimals(costs)),
                    "best": best.label,
                    "value": summary_text(best.summary, decimals),
                }
            )
    return _table("budgets", "Best within a budget", rows, BUDGET)


# -- caption --------------------------------------------------------------------------------------


def caption(result: StudyResult) -> str:
    """Set-up (scale, steps, seeds, evaluation bits), sources, notes and unfinished runs."""
    parts = [setup(result)]
    sources = _listed(p.where for each in result.methods for p in each.method.published)
    if sources:
        warning = "" if result.study.scale == "full" else ", a larger set-up: compare differences"
        parts.append(f"Published: {sources}{warning}")
    parts += study_notes(result)
    unfinished = _states(
        result, {"failed": "failed", "started": "started and not finished", "missing": "missing"}
    )
    if unfinished:
        parts.append(f"Of {result.num_runs} runs {unfinished}")
    return " ".join(f"{part[:1].upper()}{part[1:].rstrip('.')}." for part in parts)


def setup(result: StudyResult) -> str:
    """Our set-up in one sentence: networks, steps, seeds and evaluation bits."""
    configs = [each.method.config for each in result.methods]
    what = _listed(f"{config.model.name} on {config.data.name}" for config in configs)
    counts = sorted({len(each.runs) for each in result.methods})
    seeds = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    bits = _listed(run.eval_precision for each in result.methods for run in each.results.values())
    evaluated = f", evaluated at {bits}" if bits else ""
    scale = " (reduced scale)" if result.study.scale == "small" else ""
    return f"Ours: {what}, {_length(result)}, {seeds} seed{'s' * (seeds != '1')}{evaluated}{scale}"


def _length(result: StudyResult) -> str:
    steps = {run.steps for each in result.methods for run in each.results.values()}
    planned = [each.method.config for each in result.methods if not each.results]
    steps |= {config.steps for config in planned if config.steps is not None}
    texts = [f"{number:,}" for number in sorted(steps)]
    if len(texts) > 3:
        texts = [f"{texts[0]} to {texts[-1]}"]
    *some, last = texts or [""]
    lengths = [f"{', '.join(some)} or {last} steps" if some else f"{last} steps"] if last else []
    lengths += sorted({f"{c.epochs:g} epochs" for c in planned if c.epochs is not None})
    return ", ".join(lengths)


def _listed(texts: Iterable[str], separator: str = ", ") -> str:
    """The texts that are not empty, each once."""
    return separator.join(dict.fromkeys(filter(None, texts)))


# -- CSV ------------------------------------------------------------------------------------------


def to_csv(result: StudyResult) -> str:
    """A line per method with unrounded numbers; an unknown number is an empty cell.

    A text that a spreadsheet would execute as a formula begins with a quote.
    """
    lines = method_rows(result)
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _without_formula(cell) for key, cell in line.items()} for line in lines)
    return buffer.getvalue()


def method_rows(result: StudyResult) -> list[dict[str, Any]]:
    """A row per method with unrounded numbers; None is unknown."""
    return [_row(result, group, each) for group in summarize(result) for each in group.methods]


_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


def _without_formula(cell: Any) -> Any:
    """A cell that no spreadsheet executes.

    >>> [_without_formula(cell) for cell in ("=1+2", "-w4", "-0.5", -0.5, "w4", "@x")]
    ["'=1+2", "'-w4", '-0.5', -0.5, 'w4', "'@x"]
    """
    if not isinstance(cell, str) or not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n")):
        return cell
    return cell if _NUMBER.fullmatch(cell) else f"'{cell}"


def _row(result: StudyResult, group: GroupSummary, each: MethodSummary) -> dict[str, Any]:
    summary, difference, method = each.summary, each.difference, each.method
    done = list(each.result.results.values())
    row, column = method.place or (each.label, group.group)
    published = published_values(method, group.metric)
    return {
        "study": result.study.name,
        "group": group.group,
        "method": each.label,
        "row": row,
        "column": column,
        "at": method.at,
        "metric": group.metric,
        "n": len(done),
        **{key: getattr(summary, key, None) for key in ("mean", "std", "low", "high")},
        "published": "; ".join(f"{p.value:g}" for p in published),
        "baseline": group.baseline,
        "difference": getattr(difference, "mean", None),
        "difference_low": getattr(difference, "low", None),
        "difference_high": getattr(difference, "high", None),
        "p": getattr(difference, "p", None),
        "pairs": getattr(difference, "n", None),
        "bitops": each.bitops,
        "relative_cost": each.relative_cost,
        "published_gbitops": published_value(method, "cost"),
        "is_on_front": each.is_on_front,
        "eval_precision": "; ".join(sorted({run.eval_precision for run in done})),
        "steps": "; ".join(str(steps) for steps in sorted({run.steps for run in done})),
        "seeds": " ".join(str(seed) for seed in sorted(each.result.results)),
        **{state: each.result.count(state) for state in ("failed", "started", "missing")},
    }
