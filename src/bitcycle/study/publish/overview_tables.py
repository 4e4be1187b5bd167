"""The tables over all published studies, in Markdown, with links to their pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import quote

from bitcycle.study.numbers import UNITS, cost_text, difference_text, p_text
from bitcycle.study.numbers import summary_text as value_text
from bitcycle.study.publish.beside import change_text
from bitcycle.study.publish.comparisons import Compared, distinct, hardest, main, plain
from bitcycle.study.publish.pairs import UNKNOWN, Pair, costs, count, counted
from bitcycle.study.publish.restore import Evidence
from bitcycle.study.summary import Row, summarize
from bitcycle.study.table_text import Table, escape_markdown, markdown_rows, without_empty_columns

_PAIR = ("study", "group", "cyclic", "static", "difference (95 % interval)", "n", "p", "cost")
_NUMBERS = (False, False, False, False, True, True, True, True, False)
MOST = 12  # rows of the table that stands in another document
ALL = (
    "Every comparison of CPT's schedule with static bits at its top, shared runs once; where a "
    "study has several quantizers, that of the default one."
)
PUBLISHED = "Published: the same difference in the paper's table, of its network, with no n."
MAIN = (
    "One comparison for each network and data: that with the study's baseline, of several the one "
    "that most studies have; chosen by its bits, not by its value."
)


def headline_text(entries: Sequence[Compared]) -> str:
    """Every comparison of CPT's own schedule with static bits at its top."""
    return _with_values(plain(entries), "")


def short_headline_text(entries: Sequence[Compared], *, folder: str) -> str:
    """The same with a sentence that says which are shown; the main ones where they are many."""
    all_of_them = plain(entries)
    if not all_of_them:
        return ""
    chosen, said = all_of_them, ALL
    if len(all_of_them) > MOST:
        chosen = main(entries)
        left = [e.pair for e in all_of_them if e.ids not in {entry.ids for entry in chosen}]
        said = f"{MAIN} Of the {len(left)} others in [results]({folder}README.md): {counted(left)}."
    if any(entry.published is not None for entry in chosen):
        said += f" {PUBLISHED}"
    return f"{_with_values(chosen, folder)}\n\n{said}"


def _with_values(entries: Sequence[Compared], folder: str) -> str:
    names = ("study", "group", "metric", "cyclic", "static", "difference (95 % interval)", "n",
             "published", "cost", "verdict")  # fmt: skip
    rows = [_value_cells(entry) for entry in entries]
    return _markdown(names, rows, (*[False] * 3, *[True] * 6, False), folder)


def _value_cells(entry: Compared) -> tuple[str, ...]:
    pair = entry.pair
    metric = pair.group.metric
    return (
        entry.study,
        pair.group.group,
        f"{metric},{UNITS[metric]}" if metric in UNITS else metric,
        f"{pair.cyclic.label}: {value_text(pair.cyclic.summary)}",
        f"{pair.static.label}: {value_text(pair.static.summary)}",
        difference_text(pair.difference),
        str(pair.difference.n),
        change_text(entry.published),
        cost_text(pair.cost),
        pair.words(),
    )


def against_text(entries: Sequence[Compared], cheap: Sequence[Compared]) -> str:
    """Every comparison that speaks against the claim, or cannot speak for it; empty for none."""
    rows = [(*_cells(entry), why) for entry, why in against(entries, cheap)]
    return _markdown((*_PAIR, "why"), rows, _NUMBERS, "")


def against(
    entries: Sequence[Compared], cheap: Sequence[Compared]
) -> Iterator[tuple[Compared, str]]:
    """With the reason; cheap: comparisons with static bits that cost no more.

    Against these the cyclic schedule has to be better where it is dearer.
    """
    for entry in distinct(entries):
        pair = entry.pair
        why = ["worse beyond noise"] if pair.is_better is False else []
        why += ["no lower cost"] if not pair.is_cheaper else []
        why += [pair.words()] if pair.verdict == UNKNOWN else []
        if why:
            yield entry, "; ".join(why)
    for entry in hardest(cheap):
        pair = entry.pair
        if pair.is_better is False:
            yield entry, "worse beyond noise than static bits that cost no more"
        elif pair.is_dearer and pair.verdict == UNKNOWN:
            yield entry, f"dearer than static bits; {pair.words()}"
        elif pair.is_dearer and pair.is_better is None:
            yield entry, "dearer than static bits that do as well, within noise"


def looked_at(entries: Sequence[Compared], cheap: Sequence[Compared]) -> str:
    """Among which comparisons those against the claim were sought, and by which rule."""
    top, harder = len(distinct(entries)), len(hardest(cheap))
    return (
        f"Looked at: {top} comparisons with static bits at the same top, for a cyclic schedule "
        f"that is worse beyond noise or not cheaper; {harder} with the best static bits that cost "
        "no more, for one that is worse beyond noise, or dearer and not better beyond noise."
    )


def _cells(entry: Compared) -> tuple[str, ...]:
    pair = entry.pair
    return (
        entry.study,
        pair.group.group,
        pair.cyclic.label,
        pair.static.label + (f" ({entry.partner})" if entry.partner else ""),
        f"{difference_text(pair.difference)}{unit(pair)}",
        str(pair.difference.n),
        p_text(pair.difference.p),
        cost_text(pair.cost),
    )


def unit(pair: Pair) -> str:
    """Of a metric that is no accuracy, its name."""
    return "" if pair.group.metric == "accuracy" else f" {pair.group.metric}"


def summary_text(
    entries: Sequence[Compared], cheap: Sequence[Compared] = (), *, folder: str = ""
) -> str:
    """All comparisons counted, a row for each group of each study."""
    groups: dict[tuple[str, str], tuple[list[Pair], list[Pair]]] = {}
    for kind, found in enumerate((entries, cheap)):
        for entry in found:
            place = entry.study, entry.pair.group.group
            groups.setdefault(place, ([], []))[kind].append(entry.pair)
    names = ("study", "group", "n", "cost",
             *(f"{test}: {word}" for test in ("same top", "no dearer")
               for word in ("better", "within noise", "worse", "cannot tell")))  # fmt: skip
    rows = [
        (
            *place,
            _range([pair.difference.n for pair in (*top, *no_dearer)]),
            costs(top) if top else "",
            *_counts(top),
            *_counts(no_dearer),
        )
        for place, (top, no_dearer) in groups.items()
    ]
    return _markdown(names, rows, (False, False, *[True] * 10), folder)


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low} to {high}"


def _counts(pairs: Sequence[Pair]) -> tuple[str, ...]:
    return tuple(str(number) if number else "" for number in count(pairs))


def fronts_text(published: Sequence[Evidence], *, folder: str = "") -> str:
    """The Pareto front of every group of every study, cheapest first; empty for none."""
    rows = []
    for study, group, judged in _judged(published):
        counts = [row.summary.n for row in judged if row.summary is not None]
        rows.append(
            (
                study,
                group,
                "; ".join(row.label for row in judged if row.is_on_front),
                _share(judged, is_scheduled=True),
                _share(judged, is_scheduled=False),
                _range(counts),
            )
        )
    names = (
        "study", "group", "on the front, cheapest first", "changing bits on it", "static on it", "n"
    )  # fmt: skip
    return _markdown(names, rows, (False, False, False, True, True, True), folder)


def _judged(published: Sequence[Evidence]) -> Iterator[tuple[str, str, list[Row]]]:
    """(study, group, its rows by cost), where there are two costs or more."""
    for evidence in published:
        for group in summarize(evidence.result) if evidence.has_front else ():
            rows = sorted((r for r in group.done if r.bitops), key=lambda r: r.bitops or 0.0)
            if len({row.bitops for row in rows}) > 1:
                yield evidence.study.name, group.group, rows


def _share(rows: Sequence[Row], *, is_scheduled: bool) -> str:
    found = [row for row in rows if row.is_scheduled == is_scheduled]
    return f"{sum(row.is_on_front for row in found)} of {len(found)}" if found else ""


def _markdown(
    names: Sequence[str], rows: Sequence[tuple[str, ...]], is_number: Sequence[bool], folder: str
) -> str:
    """A table without a title, its first column linked to the pages of studies; empty for none."""
    if not rows:
        return ""
    table = Table(
        name="overview",
        title="",
        columns=tuple(("", name) for name in names),
        rows=tuple(rows),
        is_number=tuple(is_number),
    )
    return markdown_rows(without_empty_columns(table), first=lambda name: link(name, folder))


def link(name: str, folder: str = "") -> str:
    """A study's name that leads to its page.

    >>> link("my study", "results/")
    '[my study](results/my%20study.md)'
    """
    return f"[{escape_markdown(name)}]({folder}{quote(name)}.md)"
