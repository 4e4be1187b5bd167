"""What all published studies say together: one page, every sentence of it by rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from bitcycle.study.headline import headline
from bitcycle.study.numbers import cost_text, difference_text, share_text
from bitcycle.study.publish.answers import (
    Compared,
    allowed,
    answer,
    budget_answer,
    compared,
    who,
)
from bitcycle.study.publish.pairs import UNKNOWN, Pair, budget_pairs
from bitcycle.study.publish.restore import Evidence
from bitcycle.study.publish.tables import BUDGET, NO_DEARER, SAME_TOP, TOP
from bitcycle.study.summary import summarize
from bitcycle.study.table_text import Table, escape_markdown, to_markdown, without_empty_columns


def headline_table(entries: Sequence[Compared]) -> Table:
    """A row for each comparison."""
    rows = tuple(
        (
            entry.study,
            entry.pair.group.group,
            entry.pair.cyclic.label,
            entry.pair.static.label,
            f"{difference_text(entry.pair.difference)}{_unit(entry.pair)}",
            str(entry.pair.difference.n),
            cost_text(entry.pair.cost),
            entry.pair.words(),
        )
        for entry in entries
    )
    names = ("study", "group", "cyclic", "static", "difference (95 % interval)", "n", "cost",
             "verdict")  # fmt: skip
    return without_empty_columns(
        Table(
            name="headline",
            title=SAME_TOP,
            columns=tuple(("", name) for name in names),
            rows=rows,
            is_number=(False, False, False, False, True, True, True, False),
            caption=TOP,
        )
    )


def _unit(pair: Pair) -> str:
    """Of a metric that is no accuracy, its name."""
    return "" if pair.group.metric == "accuracy" else f" {pair.group.metric}"


def headline_text(entries: Sequence[Compared], *, folder: str = "") -> str:
    """The table in Markdown, its first column linked to the pages in `folder`."""
    table = replace(headline_table(entries), caption="")
    return _linked(to_markdown(table), entries, folder)


def summary_text(entries: Sequence[Compared], *, folder: str = "") -> str:
    """The same in a row for each group of each study: how many are better, worse, and the cost."""
    groups: dict[tuple[str, str], list[Pair]] = {}
    for entry in entries:
        groups.setdefault((entry.study, entry.pair.group.group), []).append(entry.pair)
    rows = []
    for (study, group), pairs in groups.items():
        better, worse = (sum(p.is_better is side for p in pairs) for side in (True, False))
        untold = sum(pair.verdict == UNKNOWN for pair in pairs)
        counts = [
            str(n) if n else "" for n in (better, len(pairs) - better - worse - untold, worse)
        ]
        low, high = (share_text(end(p.cost for p in pairs)) for end in (min, max))
        seeds = sorted({pair.difference.n for pair in pairs})
        n = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
        rows.append((study, group, str(len(pairs)), *counts, str(untold) if untold else "",
                     low if low == high else f"{low} to {high}", n))  # fmt: skip
    names = ("study", "group", "comparisons", "better", "within noise", "worse", "cannot tell",
             "cost of static's", "n")  # fmt: skip
    table = without_empty_columns(
        Table(
            name="summary",
            title="",
            columns=tuple(("", name) for name in names),
            rows=tuple(rows),
            is_number=(False, False, *[True] * 7),
        )
    )
    return _linked(to_markdown(table), entries, folder)


def _linked(markdown: str, entries: Sequence[Compared], folder: str) -> str:
    """A table without its title, the names of studies in it linked to their pages."""
    text = markdown.partition("\n\n")[2].rstrip("\n")
    for name in dict.fromkeys(entry.study for entry in entries):
        shown = escape_markdown(name)
        text = text.replace(f"\n| {shown} |", f"\n| [{shown}]({folder}{name}.md) |")
    return text


def does_not_hold(entries: Sequence[Compared]) -> Iterator[str]:
    """Every comparison that speaks against the claim, or cannot speak for it."""
    for entry in entries:
        pair = entry.pair
        amount = f"{difference_text(pair.difference)}{_unit(pair)}, n = {pair.difference.n}"
        what = f"{entry.study}, {who(pair)}"
        if pair.is_better is False:
            yield f"{what}: worse beyond noise, {amount}, at {share_text(pair.cost)} of the cost"
        if not pair.is_cheaper:
            yield f"{what}: no lower cost, {share_text(pair.cost)} of the static run's"
        if pair.verdict == UNKNOWN:
            yield f"{what}: {pair.words()}, so no interval; {amount}"


def no_gain(entries: Sequence[Compared]) -> Iterator[str]:
    """Where static bits that cost no more end better beyond noise."""
    for entry in entries:
        pair = entry.pair
        if pair.is_better is False:
            amount = f"{difference_text(pair.difference)}{_unit(pair)}, n = {pair.difference.n}"
            yield f"{entry.study}, {who(pair)}, which costs no more: worse beyond noise, {amount}"


def fronts(published: Sequence[Evidence]) -> Iterator[str]:
    """The Pareto front of every group of every study, cheapest first."""
    for evidence in published:
        if evidence.study.kind == "critical-periods":
            continue
        for group in summarize(evidence.result):
            rows = sorted(
                (row for row in group.done if row.bitops), key=lambda row: row.bitops or 0.0
            )
            if len({row.bitops for row in rows}) < 2:
                continue
            on = ", ".join(row.label for row in rows if row.is_on_front)
            cyclic = [row for row in rows if row.is_scheduled]
            number = sum(row.is_on_front for row in cyclic)
            place = f", {group.group}" if group.group else ""
            counts = sorted({row.summary.n for row in rows if row.summary is not None})
            n = f"n = {counts[0]}" if len(counts) == 1 else f"n = {counts[0]} to {counts[-1]}"
            share = f"{number} of {len(cyclic)} schedules with changing bits" if cyclic else ""
            yield f"{evidence.study.name}{place}: {on} ({'; '.join(filter(None, [share, n]))})"


def overview_page(
    published: Sequence[Evidence], others: Sequence[tuple[str, str, str]] = ()
) -> str:
    """The page; others: (title, file, sentence) of pages that are no study."""
    entries = compared(published)
    parts = [
        "<!-- made by bitcycle from data/*.json; an edit here is lost -->",
        "# Results",
        "Measured with this package, not taken from the papers. Every page has its commands, "
        "machine and versions; `bitcycle study publish --render results` makes all of them again "
        "from the files in `data`. What the columns mean: "
        "[docs/statistics.md](../docs/statistics.md).",
        "## Does cyclic precision match or beat static bits at lower cost here?",
        escape_markdown(answer(entries)),
    ]
    cheap = compared(published, budget_pairs)
    parts += [escape_markdown(more) for more in (allowed(entries), budget_answer(cheap)) if more]
    if entries:
        parts += [headline_text(entries), escape_markdown(f"{TOP} Studies may share runs; the "
                  "sentence above counts shared comparisons once.")]  # fmt: skip
    lines = list(fronts(published))
    parts.append("## Which schedules are on the Pareto front?")
    parts.append("\n".join(f"- {escape_markdown(line)}" for line in lines) or "Nothing to say yet.")
    if lines:
        parts.append("By mean and cost: no other method of the group is both cheaper and better.")
    if cheap:
        parts += [f"## {NO_DEARER}", headline_text(cheap), escape_markdown(BUDGET)]
    against = [*does_not_hold(entries), *no_gain(cheap)]
    parts.append("## Where does it not hold?")
    if not entries:
        parts.append("Nothing to say yet.")
    elif against:
        parts.append("\n".join(f"- {escape_markdown(line)}" for line in against))
    else:
        parts.append("In no comparison was the cyclic schedule worse beyond noise or dearer.")
    parts += ["## All pages", "\n".join(_pages(published, others)) or "None yet."]
    return "\n\n".join(parts) + "\n"


def _pages(published: Sequence[Evidence], others: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    for evidence in published:
        name, done = evidence.study.name, evidence.result.count("done")
        said = f"{done} of {evidence.result.num_runs} runs. {headline(evidence.result)}."
        yield f"- [{escape_markdown(name)}]({name}.md): {escape_markdown(said)}"
    for title, file, sentence in others:
        yield f"- [{escape_markdown(title)}]({file}): {escape_markdown(sentence)}"
