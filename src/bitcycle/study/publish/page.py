"""The page of one study, made from its file alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from bitcycle.study.caption import caption
from bitcycle.study.compare_table import duration
from bitcycle.study.headline import amount, headline
from bitcycle.study.numbers import summary_text
from bitcycle.study.publish.beside import published_table
from bitcycle.study.publish.commands import PLACES
from bitcycle.study.publish.pairs import Pair, budget_pairs, costs, counted, top_pairs
from bitcycle.study.publish.restore import Evidence
from bitcycle.study.publish.tables import (
    BUDGET,
    NO_DEARER,
    methods_table,
    top_table,
    with_verdicts,
)
from bitcycle.study.summary import GroupSummary, summarize
from bitcycle.study.table import VALUES, study_tables
from bitcycle.study.table_text import Table, escape_markdown, to_markdown

MADE = "<!-- made by bitcycle from data/{name}.json; an edit here is lost -->"
RECIPE = (
    "All settings: `bitcycle train RECIPE --print-config`. A recipe is named where the method has "
    "its settings, but for threads and folders."
)
_WITHOUT_FRONT = VALUES.removesuffix(" Front: no other method is cheaper and better.")


def study_page(evidence: Evidence, pictures: Sequence[tuple[str, str]]) -> str:
    """Everything that there is to say; `pictures`: (what it shows, file name) of each."""
    study, groups = evidence.study, summarize(evidence.result)
    prefix = f"{study.name}-"
    known = {table.name.removeprefix(prefix): table for table in study_tables(evidence.result)}
    parts = [
        MADE.format(name=study.name),
        f"# {escape_markdown(study.name)}",
        escape_markdown(study.description),
        *(f"**{escape_markdown(sentence)}.**" for sentence in _answers(evidence, groups)),
        *(f"![{escape_markdown(what)}]({quote(file)})" for what, file in pictures),
        escape_markdown(caption(evidence.result)),
        *(_markdown(table, groups) for table in _first_tables(evidence, groups, known)),
    ]
    front = front_sentences(groups) if evidence.has_front else []
    if front:
        parts += ["## The Pareto front", *map(escape_markdown, front)]
    more = [known[name] for name in ("relation", "budgets", "variance") if name in known]
    methods = methods_table(evidence)
    parts += [_markdown(table, groups) for table in (*more, methods)]
    if "recipe" in methods.headings:
        parts.append(RECIPE)
    parts += _not_there(evidence)
    parts += ["## How it was made", *how(evidence)]
    return "\n\n".join(parts) + "\n"


def _answers(evidence: Evidence, groups: Sequence[GroupSummary]) -> list[str]:
    """Static bits at the same top first; the baseline where that is not all of the study."""
    pairs = all_pairs(evidence, groups)
    others = [row for group in groups for row in group.done if row.is_scheduled]
    if evidence.study.kind == "comparison" and pairs and len(pairs) == len(others):
        undone = evidence.result.num_runs - evidence.result.count("done")
        more = f"; {undone} of {evidence.result.num_runs} runs are not done" if undone else ""
        return [f"{pairs_sentence(pairs)}{more}"]
    return [*([pairs_sentence(pairs)] if pairs else []), headline(evidence.result)]


def pairs_sentence(pairs: Sequence[Pair]) -> str:
    """One comparison with its numbers, several counted."""
    if len(pairs) > 1:
        return (
            f"Of {len(pairs)} comparisons of a cyclic schedule with static bits at its top: "
            f"{counted(pairs)}; {costs(pairs)} of the cost"
        )
    (pair,) = pairs
    change = amount(pair.difference, pair.group.metric)
    return (
        f"{pair.cyclic.label} against {pair.static.label}: {costs(pairs)} of the cost, "
        f"{pair.group.metric} {change}: {pair.words()}"
    )


def _markdown(table: Table, groups: Sequence[GroupSummary]) -> str:
    """Without the column of groups where there is only one, which the set-up names."""
    shown = table if len(groups) > 1 else without_column(table, "group")
    return to_markdown(shown).rstrip("\n")


def without_column(table: Table, heading: str) -> Table:
    """The table without the column of that heading, if it has one."""
    keep = [i for i, name in enumerate(table.headings) if name != heading]
    return replace(
        table,
        columns=tuple(table.columns[i] for i in keep),
        rows=tuple(tuple(row[i] for i in keep) for row in table.rows),
        is_number=tuple(table.is_number[i] for i in keep),
    )


def _first_tables(
    evidence: Evidence, groups: Sequence[GroupSummary], known: Mapping[str, Table]
) -> Iterator[Table]:
    if evidence.has_front:
        yield replace(known["values"], caption=VALUES)
    else:
        yield replace(without_column(known["values"], "front"), caption=_WITHOUT_FRONT)
    pairs = all_pairs(evidence, groups)
    if pairs:
        yield top_table(evidence, pairs)
    cheap = all_pairs(evidence, groups, budget_pairs)
    if cheap:
        yield top_table(evidence, cheap, title=NO_DEARER, caption=BUDGET)
    if "differences" in known and not _says_the_same(groups, pairs):
        title = f"Differences to {evidence.study.baseline}"
        yield replace(with_verdicts(groups), title=title, caption=known["differences"].caption)
    published = published_table(evidence, groups)
    if published.rows:
        yield published


def _says_the_same(groups: Sequence[GroupSummary], pairs: Sequence[Pair]) -> bool:
    """Whether every comparison with the baseline is one with static bits at the same top."""
    told = {(pair.group.group, pair.cyclic.label) for pair in pairs
            if pair.static is pair.group.baseline_row}  # fmt: skip
    return {(group.group, row.label) for group in groups for row in group.others} <= told


def all_pairs(
    evidence: Evidence,
    groups: Sequence[GroupSummary],
    choose: Callable[[GroupSummary], tuple[Pair, ...]] = top_pairs,
) -> tuple[Pair, ...]:
    """Of every group; none where the question is when low precision harms."""
    if not evidence.has_front:
        return ()
    return tuple(pair for group in groups for pair in choose(group))


def front_sentences(groups: Sequence[GroupSummary]) -> list[str]:
    """Which methods are on the front of each group, cheapest first, and which are not."""
    said = []
    for group in groups:
        rows = sorted((row for row in group.done if row.bitops), key=lambda row: row.bitops or 0.0)
        if len({row.bitops for row in rows}) < 2:
            continue
        on = [f"{row.label} ({summary_text(row.summary)})" for row in rows if row.is_on_front]
        off = [row.label for row in rows if not row.is_on_front]
        place = f"{group.group}: " if group.group else ""
        rest = f" Not on it: {'; '.join(off)}." if off else ""
        said.append(f"{place}on the front, cheapest first: {'; '.join(on)}.{rest}")
    if said:
        said.append(
            "By mean and cost: a method is on the front when no other is both cheaper and better. "
            "Neighbours on it may differ by no more than noise."
        )
    return [f"{text[:1].upper()}{text[1:]}" for text in said]


def _not_there(evidence: Evidence) -> list[str]:
    """Every run without a result, by name, with its error."""
    lines = []
    for row in evidence.result.methods:
        for state in row.runs:
            if state.state != "done":
                word = {"started": "not finished"}.get(state.state, state.state)
                why = f": {state.error}" if state.error else ""
                text = f"{row.method.key}, seed {state.run.seed}: {word}{why}"
                lines.append(f"- {escape_markdown(text)}")
    return ["## Runs that are not there", "\n".join(lines)] if lines else []


def how(evidence: Evidence) -> list[str]:
    """Commands, machine, versions and time."""
    file = f"data/{quote(evidence.study.name)}.json"
    made = "; ".join(map(machine_text, evidence.machines)) or "not recorded"
    threads = " or ".join(map(str, evidence.threads))
    each = f", {threads} thread{'' if threads == '1' else 's'} a run" if threads else ""
    used = {word for command in evidence.commands for word in command.split()}
    *some, last = [word for word in (*PLACES.values(), "RUNS") if word in used] or ["RUNS"]
    places = f"{', '.join(some)} and {last} stand for folders" if some else (
        f"{last} stands for a folder"
    )  # fmt: skip
    return [
        "```text\n" + "\n".join(evidence.commands) + "\n```",
        "The first command trains what is missing, the second writes this page and its file from "
        "the runs; `bitcycle study publish --render results` makes the page again from "
        f"[{file}]({file}), with no runs. {places}.",
        escape_markdown(f"Machine: {made}{each}."),
        escape_markdown(wall_clock(evidence)),
    ]


def machine_text(machine: Mapping[str, Any]) -> str:
    """Processor and versions in a line."""
    cores = machine.get("num_cpus")
    parts = [
        machine.get("processor"),
        f"{cores} core{'' if cores == 1 else 's'}" if cores else None,
        machine.get("cpu_capability"),
        None if machine.get("device") in (None, "cpu") else machine["device"],
        *(f"{name} {machine[name]}" for name in ("torch", "python", "bitcycle") if name in machine),
    ]
    return ", ".join(str(part) for part in parts if part)


def wall_clock(evidence: Evidence) -> str:
    """Of all runs together, and of one."""
    seconds = [run.seconds for row in evidence.result.methods for run in row.results.values()]
    if not seconds:
        return "No run is done."
    shortest, longest = duration(min(seconds)), duration(max(seconds))
    one = shortest if shortest == longest else f"{shortest} to {longest}"
    number = f"{len(seconds)} run{'' if len(seconds) == 1 else 's'}"
    return (
        f"Wall-clock: {number}, {duration(sum(seconds))} one after another, {one} each, with "
        "whatever else the machine did meanwhile."
    )
