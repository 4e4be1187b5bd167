"""The page of one study."""

from __future__ import annotations

import math
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
from bitcycle.study.headline import headline
from bitcycle.study.summary import GroupSummary, MethodSummary, metric_title, summarize
from bitcycle.study.tables import setup
from bitcycle.tables import escape_markdown
from tools.results.commands import gather_command
from tools.results.comparison import (
    CyclicComparison,
    compare,
    compare_at_cost,
    published_difference,
    summarize_comparisons,
)
from tools.results.page import Data, Page, link, machine_and_time, picture, sentence, table
from tools.results.study_data import StudyData, recipe_of, training

SHOWS = {
    "comparison": "Final value against training cost",
    "suite": "Final value against training cost",
    "critical-periods": "Final value against length or start of the deficit",
}
COLUMNS = (
    "Mean over n seeds with its 95 % interval, of the last evaluation of each run. Cost: training "
    "BitOPs, that of the baseline ({}) = 1. Difference: paired by seed, of a schedule to static "
    "bits of the same top precision where the study has them, else to the baseline."
)
PUBLISHED = " Published: the same difference in the paper's table (its network, no n)."


def study_page(study: StudyData, studies: Sequence[StudyData] = ()) -> Page:
    """One sentence, the picture of the study, every method in one table.

    studies: all of the folder, whose static bits the details compare with at equal cost.
    """
    result, groups = study.result, summarize(study.result)
    comparisons = compare(study)
    values, has_published = values_table(study, groups, comparisons)
    return Page(
        name=study.name,
        title=result.study.description.rstrip("."),
        answer=answer(study, groups, comparisons),
        picture=_picture(study, groups),
        table=values,
        columns=COLUMNS.format(result.study.baseline or "none here")
        + (PUBLISHED if has_published else ""),
        commands=[study.command, gather_command(study.command)],
        details=_details(study, groups, studies),
    )


def answer(
    study: StudyData, groups: Sequence[GroupSummary], comparisons: Sequence[CyclicComparison]
) -> str:
    """The comparisons with static bits, or the study's headline if they are only part of it."""
    scheduled = [row for group in groups for row in group.done if row.is_scheduled]
    said = [summarize_comparisons(comparisons)] if comparisons else []
    if study.result.study.kind != "comparison" or not said:
        return sentence(headline(study.result))
    if 2 * len(comparisons) < len(scheduled):
        return " ".join([sentence(headline(study.result)), *said])
    done, planned = study.result.count("done"), study.result.num_runs
    return " ".join([*said, *([] if done == planned else [f"{done} of {planned} runs are done."])])


def _picture(study: StudyData, groups: Sequence[GroupSummary]) -> tuple[str, str] | None:
    """(title, picture); None if no group has more than two methods, which the table shows."""
    is_drawn = any(
        row.summary is not None and math.isfinite(row.summary.mean)
        for group in groups
        for row in group.done
    )
    if not is_drawn or max(len(group.done) for group in groups) <= 2:
        return None
    return SHOWS[study.result.study.kind], picture(study.result)


def values_table(
    study: StudyData, groups: Sequence[GroupSummary], comparisons: Sequence[CyclicComparison]
) -> tuple[str, bool]:
    """The table of all methods, and whether it has published differences."""
    known = {each.cyclic.method.key: each for each in comparisons}
    headings = {metric_title(group.metric) for group in groups}
    value = headings.pop() if len(headings) == 1 else "value"
    rows = []
    for group in groups:
        for row in group.methods:
            each, base = known.get(row.method.key), group.baseline_method
            partner = base if each is None else each.static
            difference = row.difference if each is None else each.difference
            change = None
            if partner is not None:
                keys = [side.method.key for side in (row, partner)]
                change = published_difference(study, *keys)
            is_shown = row.is_scheduled and difference is not None and partner is not None
            rows.append(
                [
                    group.group if len(groups) > 1 else "",
                    row.label,
                    value_text(row.summary),
                    "" if row.relative_cost is None else cost_text(row.relative_cost),
                    str(row.summary.n if row.summary else 0),
                    partner.label if is_shown and partner is not None else "",
                    difference_text(difference) if is_shown else "",
                    fixed(change, DECIMALS, sign=True) if is_shown and change is not None else "",
                ]
            )
    names = ["group", "method", f"{value} (95 % interval)", "cost", "n", "against",
             "difference (95 % interval)", "published"]  # fmt: skip
    return table(names, rows), any(row[7] for row in rows)


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
    return str(precision.forward), str(precision.backward), precision.quantizer
