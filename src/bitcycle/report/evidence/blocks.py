"""Parts of documents that are made from result files: what stands between two marks.

    <!-- made: headline -->
    ... replaced ...
    <!-- end -->

headline: CPT against static bits at its top, with what is shown. summary: all comparisons counted,
a row for each group of each study. answer: in sentences, with the loss that is still possible.
reproduce-full, reproduce-small: what each study takes. machine: where those times come from.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bitcycle.report.evidence.render import TIMES, data_folder, read_folder
from bitcycle.study.publish.answers import allowed, answer
from bitcycle.study.publish.comparisons import compared
from bitcycle.study.publish.overview_tables import short_headline_text, summary_text
from bitcycle.study.publish.pairs import budget_pairs
from bitcycle.study.publish.reproduce import machine_sentence, reproduce_table
from bitcycle.study.publish.restore import Evidence, read_data
from bitcycle.study.table_text import escape_markdown
from bitcycle.train.files import write_text

NAMES = ("headline", "summary", "answer", "reproduce-full", "reproduce-small", "machine")
_OPEN = re.compile(r"<!-- made: ([^\n]*?) -->")
_PART = re.compile(
    r"(?P<open><!-- made: (?P<name>[\w-]+) -->\n)(?P<old>(?:(?!<!-- made: ).)*?)"
    r"(?P<end><!-- end -->)", re.DOTALL
)  # fmt: skip


def fill(text: str, folder: Path, *, beside: Path) -> str:
    """The document with its made parts as the folder's files have them; `beside`: where it lies."""
    _check_marks(text)
    links = f"{os.path.relpath(folder, beside)}/".replace(os.sep, "/")
    studies, _ = read_folder(folder)

    def new(part: re.Match[str]) -> str:
        return f"{part['open']}{_make(part['name'], studies, folder, links)}\n{part['end']}"

    return _PART.sub(new, text)


def _check_marks(text: str) -> None:
    """Every part has its end, so that nothing behind it is taken for its contents."""
    closed = {part.start("open") for part in _PART.finditer(text)}
    for mark in _OPEN.finditer(text):
        if mark.start() not in closed:
            raise ValueError(
                f"the part {mark[1]!r} has no end: it is two lines of their own, {mark[0]} and "
                "<!-- end -->, before the next part"
            )


def _make(name: str, studies: Sequence[Evidence], folder: Path, links: str) -> str:
    if name not in NAMES:
        raise ValueError(f"there is no made part {name!r}; known: {', '.join(NAMES)}")
    if name in ("headline", "summary", "answer"):
        entries = compared(studies)
        text = ""  # where there is nothing to show, the answer says so
        if name == "headline":
            text = short_headline_text(entries, folder=links)
        if name == "summary":
            text = summary_text(entries, compared(studies, budget_pairs), folder=links)
        return text or escape_markdown(f"{answer(entries)} {allowed(entries)}".rstrip())
    path = data_folder(folder) / f"{TIMES}.json"
    times = _times(path)
    try:
        if name == "machine":
            return escape_markdown(machine_sentence(times))
        return reproduce_table(times, studies, name.removeprefix("reproduce-"), folder=links)
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged ({type(error).__name__}: {error}); benchmarks/study_times.py "
            "writes it"
        ) from None


def _times(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"there is no {path}; benchmarks/study_times.py writes it")
    return read_data(path)


def fill_file(path: Path, folder: Path) -> bool:
    """Makes the parts of a document again; whether that changed it."""
    text = path.read_text(encoding="utf-8")
    if not _OPEN.search(text):
        raise ValueError(
            f"{path} has no part to fill: a line <!-- made: headline --> and a line <!-- end -->"
        )
    try:
        filled = fill(text, folder, beside=path.parent)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if filled == text:
        return False
    write_text(path, filled)
    return True
