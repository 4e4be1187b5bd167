"""What all published studies say together: one page, every sentence of it by rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bitcycle.study.headline import headline
from bitcycle.study.publish.answers import allowed, answer, budget_answer
from bitcycle.study.publish.comparisons import compared, without_partner
from bitcycle.study.publish.overview_tables import (
    against_text,
    fronts_text,
    headline_text,
    link,
    looked_at,
    summary_text,
)
from bitcycle.study.publish.pairs import budget_pairs
from bitcycle.study.publish.restore import Evidence
from bitcycle.study.table_text import escape_markdown

PLAIN = (
    "CPT's schedule (cosine cycles of the forward bits from the first step; small studies mostly "
    "have 8 where the paper has 32) against static bits at its upper end: every comparison that "
    "there is, but of several quantizers in a study only that of the default one. Of studies that "
    "share its runs, the one with the most seeds. Values: mean ± standard deviation; difference: "
    "paired over n common seeds; published: the same in the paper's table, of its network, with no "
    "n. Cost: training BitOPs, the static one's = 1. Other schedules and quantizers are in the "
    "counts below and on the pages of their studies."
)
COUNTED = (
    "Same top: every cyclic schedule against static bits at its upper end, and its cost next to "
    "theirs. No dearer: against the best static bits that cost no more, which are chosen by their "
    "mean and so on the lucky side. Static runs of the same network, data, length and quantizer "
    "may be another study's, which the page of a study does not see. Studies may share runs: a "
    "comparison counts in each of them here, and once in the sentences above."
)
AGAINST = (
    "What has no interval is listed too. Shared comparisons once; each by its own interval, not "
    "corrected for their number. In brackets: the study that has the static runs, where it is "
    "another one. Cost: of the cyclic one, the static one's = 1. What is better beyond noise is on "
    "the pages of the studies, by the same rule."
)
FRONT = (
    "By mean and cost: no other method of the group is both cheaper and better. A front depends on "
    "what the study compares: a cycle may be on it for want of cheaper static bits. Neighbours on "
    "a front may differ by no more than noise."
)


def overview_page(
    published: Sequence[Evidence], others: Sequence[tuple[str, str, str]] = ()
) -> str:
    """The page; others: (title, file, sentence) of pages that are no study."""
    return "\n\n".join(filter(None, _parts(published, others))) + "\n"


def _parts(published: Sequence[Evidence], others: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    entries, cheap = compared(published), compared(published, budget_pairs)
    yield "<!-- made by bitcycle from data/*.json; an edit here is lost -->"
    yield "# Results"
    yield (
        "Measured with this package, not taken from the papers. Every page has its commands, "
        "machine and versions; `bitcycle study publish --render results` makes all of them again "
        "from the files in `data`. What the columns mean: "
        "[docs/statistics.md](../docs/statistics.md)."
    )
    yield "## Does cyclic precision match or beat static bits at lower cost here?"
    yield from map(escape_markdown, (answer(entries), allowed(entries), budget_answer(cheap)))
    text = headline_text(entries)
    if text:
        yield from (text, escape_markdown(PLAIN))
    if entries or cheap:
        yield "### All comparisons, counted"
        yield summary_text(entries, cheap)
        yield escape_markdown(COUNTED)
    yield escape_markdown(_alone(published))
    yield "## Which schedules are on the Pareto front?"
    front = fronts_text(published)
    yield front or "Nothing to say yet."
    yield escape_markdown(FRONT) if front else ""
    yield "## Where does it not hold?"
    against = against_text(entries, cheap)
    if against:
        yield from (against, escape_markdown(f"{looked_at(entries, cheap)} {AGAINST}"))
    elif entries or cheap:
        yield escape_markdown(f"{looked_at(entries, cheap)} None was found.")
    else:
        yield "Nothing to say yet."
    yield "## All pages"
    compared_studies = {entry.study for entry in entries}
    yield "\n".join(_pages(published, others, compared_studies)) or "None yet."


def _alone(published: Sequence[Evidence]) -> str:
    """What is not compared; empty when everything is."""
    found = [f"{number} of {name}" for name, number in without_partner(published).items()]
    if not found:
        return ""
    return (
        "Not compared, because no study here has finished runs of static bits at their top: "
        f"{', '.join(found)}. Their pages compare them with the baseline of the study."
    )


def _pages(
    published: Sequence[Evidence], others: Sequence[tuple[str, str, str]], is_told: set[str]
) -> Iterator[str]:
    """What each is about, and its answer where the tables above do not have it."""
    for evidence in published:
        study, done = evidence.study, evidence.result.count("done")
        said = f"{study.description.rstrip('.')}. {done} of {evidence.result.num_runs} runs."
        if study.name not in is_told:
            said += f" {headline(evidence.result)}."
        yield f"- {link(study.name)}: {escape_markdown(said.replace('?.', '?'))}"
    for title, file, sentence in others:
        yield f"- [{escape_markdown(title)}]({file}): {escape_markdown(sentence)}"
