"""A study's tables: built, and written as Markdown, CSV and LaTeX."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bitcycle.study.caption import caption
from bitcycle.study.headline import headline
from bitcycle.study.results import StudyResult
from bitcycle.study.summary import GroupSummary, summarize
from bitcycle.study.table_csv import to_csv
from bitcycle.study.table_paper import paper_table
from bitcycle.study.table_parts import (
    budget_table,
    differences_table,
    relation_table,
    values_table,
    variance_table,
)
from bitcycle.study.table_text import Table, escape_markdown, to_latex, to_markdown
from bitcycle.train.files import write_text

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
