"""The page of one study."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from bitcycle.analysis.numbers import (
    DECIMALS,
    bitops_text,
    cost_text,
    decimals_for,
    difference_text,
    fixed,
    interval_text,
    p_text,
)
from bitcycle.analysis.statistics import Summary
from bitcycle.report.figures.style import COLORS
from bitcycle.study.summary import GroupSummary, MethodSummary, metric_title, summarize
from bitcycle.study.tables import setup
from bitcycle.tables import escape_markdown
from bitcycle.train.config import ScheduleText
from tools.results.commands import gather_command
from tools.results.comparison import NOISE, CyclicComparison, compare_all, compare_at_cost
from tools.results.page import Data, Page, link, machine_and_time, picture, sentence, table
from tools.results.pictures import curves_by_group, differences, differences_by_length
from tools.results.sentences import are_lengths, note, num_steps, place, study_sentence
from tools.results.study_data import StudyData, recipe_of, training

SHOWS = {
    "comparison": "Final value against training cost",
    "suite": "Final value against training cost",
    "critical-periods": "Final value against length or start of the deficit",
}
COLUMNS = (
    "Mean of n seeds with its 95 % interval. Cost: training BitOPs, {} = 1. Difference: paired by "
    "seed."
)
PUBLISHED = " Published: the same difference in the paper, with its network."
SHOWN = " Shown: {}; the details have all methods."
LONG = 15  # rows of a table, from where on the page shows the answer and folds the rest
Row = tuple[bool, list[str]]  # whether a long table shows it, cells


def study_page(study: StudyData, studies: Sequence[StudyData] = ()) -> Page:
    """One sentence, the picture of the study, the methods in one table.

    studies: all of the folder, whose static bits the details compare with at equal cost.
    """
    result, groups = study.result, summarize(study.result)
    comparisons = compare_all(study)
    is_suite = result.study.kind == "suite"
    names, rows = values_rows(groups, comparisons, with_front=is_suite)
    is_long, what = len(rows) > LONG, "what is beyond noise"
    if is_suite:
        what = "the Pareto front and what is beyond noise"
    elif are_lengths(comparisons):
        what, longest = "the longest runs", max(comparisons, key=num_steps).group.group
        rows = [(cells[0] == longest, cells) for _, cells in rows]
    shown = [cells for is_shown, cells in rows if is_shown or not is_long]
    done, planned = result.count("done"), result.num_runs
    return Page(
        name=study.name,
        title=result.study.description.rstrip("."),
        answer=study_sentence(study, comparisons),
        picture=_picture(study, groups, comparisons),
        table=table(names, shown),
        columns=COLUMNS.format(result.study.baseline or "none here")
        + (PUBLISHED if any(cells[7] for _, cells in rows) else "")
        + note(comparisons)
        + (SHOWN.format(what) if is_long else "")
        + ("" if done == planned else f" {done} of {planned} runs are done."),
        commands=[study.command, gather_command(study.command)],
        details=[
            *(["All methods:", table(names, [cells for _, cells in rows])] if is_long else []),
            *_details(study, groups, studies),
        ],
    )


def _picture(
    study: StudyData, groups: Sequence[GroupSummary], comparisons: Sequence[CyclicComparison]
) -> tuple[str, str] | None:
    """(title, picture); None if there is nothing to draw."""
    if are_lengths(comparisons):
        what = "The difference to static bits against the length of the run"
        return what, differences_by_length(comparisons, _published_difference(study, comparisons))
    baseline, metrics = study.result.study.baseline, {group.metric for group in groups}
    has_curves = (
        study.result.study.kind == "comparison"
        and any(study.curves.values())
        and max(len(group.methods) for group in groups) <= len(COLORS)
    )
    if has_curves and baseline is not None and metrics == {"perplexity"}:
        curves = {
            group.group: {
                row.label: own for row in group.done if (own := study.curves[row.method.key])
            }
            for group in groups
        }
        drawn = {name: own for name, own in curves.items() if own}
        metric = f"{study.curve_split} perplexity"
        title = f"{metric.capitalize()} against steps, and its difference to {baseline}"
        return title, curves_by_group(drawn, metric, baseline)
    cases = [place(each.group)[2] for each in comparisons]
    if study.result.study.kind == "comparison" and len(set(cases)) > 2:
        return "Differences with their 95 % intervals", differences(comparisons, cases)
    is_drawn = any(
        row.summary is not None and math.isfinite(row.summary.mean)
        for group in groups
        for row in group.done
    )
    if not is_drawn or max(len(group.done) for group in groups) <= 2:
        return None
    return SHOWS[study.result.study.kind], picture(study.result)


def _published_difference(
    study: StudyData, comparisons: Sequence[CyclicComparison]
) -> tuple[int, float, str] | None:
    """(steps, difference, label) of the paper's own run of the first method that has one."""
    for each in comparisons:
        cell = study.published.get(each.cyclic.method.key)
        steps = re.match(r"([\d,]+) steps", cell["training"]) if cell else None
        if cell is not None and each.published is not None and steps is not None:
            label = each.cyclic.label.partition(", ")[0]
            what = f"published: {label}, {cell['group'].partition(', ')[0]}, no interval"
            return int(steps[1].replace(",", "")), each.published, what
    return None


def values_rows(
    groups: Sequence[GroupSummary],
    comparisons: Sequence[CyclicComparison],
    *,
    with_front: bool = False,
) -> tuple[list[str], list[Row]]:
    """The headings and rows of the table of all methods.

    A long table shows what is beyond noise, or on the front, and with it the static rows.
    """
    known = {each.cyclic.method.key: each for each in comparisons}
    headings = {metric_title(group.metric) for group in groups}
    value = headings.pop() if len(headings) == 1 else "value"
    rows = []
    for group in groups:
        shown = {
            row.method.key
            for row in group.methods
            if (each := known.get(row.method.key)) is not None
            and (each.verdict != NOISE or (with_front and row.is_on_front))
        }
        for row in group.methods:
            each = known.get(row.method.key)
            published = None if each is None else each.published
            cells = [
                group.group if len(groups) > 1 else "",
                row.label,
                value_text(row.summary),
                "" if row.relative_cost is None else cost_text(row.relative_cost),
                str(row.summary.n if row.summary else 0),
                "" if each is None else each.static.label,
                "" if each is None else difference_text(each.difference),
                "" if published is None else fixed(published, DECIMALS, sign=True),
            ]
            rows.append((row.method.key in shown if each else bool(shown), cells))
    return ["group", "method", f"{value} (95 % interval)", "cost", "n", "against",
            "difference (95 % interval)", "published"], rows  # fmt: skip


def value_text(summary: Summary | None) -> str:
    """Mean and interval.

    >>> value_text(Summary(mean=98.8056, std=0.41, n=20, low=98.61, high=99.0))
    '98.81 (98.61 to 99.00)'
    """
    if summary is None:
        return ""
    if summary.low is None or summary.high is None:
        return fixed(summary.mean, DECIMALS)
    mean = fixed(summary.mean, decimals_for((summary.high - summary.low) / 2))
    return f"{mean} ({interval_text(summary.low, summary.high)})"


def _details(
    study: StudyData, groups: Sequence[GroupSummary], studies: Sequence[StudyData]
) -> list[str]:
    """Set-up, differences to the baseline, methods, unfinished runs, machine and time."""
    result = study.result
    parts = [escape_markdown(" ".join(sentence(t) for t in (setup(result), *result.study.notes)))]
    cells = dict.fromkeys(
        f"{cell['where']}, {cell['group']}, {cell['training']}" for cell in study.published.values()
    )
    if cells:
        parts.append(escape_markdown(f"Published: {'; '.join(cells)}."))
    rows = [
        [group.group if len(groups) > 1 else "", row.label, difference_text(row.difference),
         str(row.difference.n), p_text(row.difference.p)]
        for group in groups
        for row in group.compared
        if row.difference is not None
    ]  # fmt: skip
    if rows:
        title = f"Differences to {result.study.baseline}, paired by seed; p is not corrected:"
        names = ["group", "method", "difference (95 % interval)", "n", "p"]
        parts += [escape_markdown(title), table(names, rows)]
    rows = [
        [each.group.group if len(groups) > 1 else "", each.cyclic.label, _static_label(each),
         cost_text(each.cost), difference_text(each.difference), str(each.difference.n)]
        for each in compare_at_cost(study, studies)
    ]  # fmt: skip
    if rows:
        names = ["group", "method", "against", "cost", "difference (95 % interval)", "n"]
        title = "Against the best static bits of any study that cost no more:"
        parts += [title, table(names, rows)]
    parts += ["Methods:", _methods_table(study, groups)]
    undone = [
        f"- {escape_markdown(f'{row.method.key}, seed {s.seed}: {s.error or s.state}')}"
        for row in result.methods
        for s in row.runs
        if s.state != "done"
    ]
    if undone:
        parts += ["Runs without a result:", "\n".join(undone)]
    runs = [run for row in result.methods for run in row.results.values()]
    made: list[Data] = [{"machine": machine} for machine in study.machines]
    made += [{"threads": number} for number in study.threads]
    made += [{"seconds": run.seconds} for run in runs]
    return [*parts, escape_markdown(f"{len(runs)} runs. {machine_and_time(made)}")]


def _static_label(each: CyclicComparison) -> str:
    """The label of the static method, with its study if that is another one."""
    if each.static_study == each.study:
        return each.static.label
    return link(f"{each.static.label} of {each.static_study}", f"{each.static_study}.md")


def _methods_table(study: StudyData, groups: Sequence[GroupSummary]) -> str:
    rows = [
        [group.group if len(groups) > 1 else "", row.label, *_bits(row),
         training(row.method.config), bitops_text(row.bitops),
         study.ids[row.method.key], recipe_of(row.method.config)]
        for group in groups
        for row in group.methods
    ]  # fmt: skip
    names = ["group", "method", "forward", "backward", "quantizer", "training", "cost of a run",
             "identity", "recipe"]  # fmt: skip
    return table(names, rows)


def _bits(row: MethodSummary) -> tuple[str, str, str]:
    precision = row.method.config.precision
    if precision.is_float:
        return "float32", "float32", ""
    return by_layer(precision.forward), by_layer(precision.backward), precision.quantizer


def by_layer(text: ScheduleText) -> str:
    """A schedule; of schedules by layer that of most layers, then those of the others.

    >>> by_layer("CR:3-8:8"), by_layer({"*": "nvfp4", "decoder": "bf16"})
    ('CR:3-8:8', 'nvfp4 (decoder bf16)')
    """
    if not isinstance(text, dict):
        return str(text)
    others = ", ".join(f"{name} {inner}" for name, inner in text.items() if name != "*")
    return f"{text.get('*', 'fp32')} ({others})" if others else str(text["*"])
