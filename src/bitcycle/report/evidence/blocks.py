"""Parts of documents that are made from result files: what stands between two marks.

    <!-- made: headline -->
    ... replaced ...
    <!-- end -->

headline: the table of cyclic against static bits. summary: the same counted, a row for each study.
answer: in a sentence. reproduce-full, reproduce-small: what each study takes. machine: where those
times come from.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from bitcycle.report.evidence.render import data_folder, read_folder
from bitcycle.study.publish.answers import answer, compared
from bitcycle.study.publish.overview import headline_text, summary_text
from bitcycle.study.publish.reproduce import machine_sentence, reproduce_table
from bitcycle.study.publish.restore import read_data
from bitcycle.study.table_text import escape_markdown
from bitcycle.train.files import write_text

NAMES = ("headline", "summary", "answer", "reproduce-full", "reproduce-small", "machine")
TIMES = "studies"  # the file of what all studies take
_PART = re.compile(r"(?P<open><!-- made: (?P<name>[\w-]+) -->\n)(?P<old>.*?)(?P<end><!-- end -->)",
                   re.DOTALL)  # fmt: skip


def fill(text: str, folder: Path, *, beside: Path) -> str:
    """The document with its made parts as the folder's files have them; `beside`: where it lies."""
    links = f"{os.path.relpath(folder, beside)}/".replace(os.sep, "/")

    def new(part: re.Match[str]) -> str:
        return f"{part['open']}{_make(part['name'], folder, links)}\n{part['end']}"

    return _PART.sub(new, text)


def _make(name: str, folder: Path, links: str) -> str:
    if name not in NAMES:
        raise ValueError(f"there is no made part {name!r}; known: {', '.join(NAMES)}")
    studies, _ = read_folder(folder)
    if name == "headline":
        return headline_text(compared(studies), folder=links)
    if name == "summary":
        return summary_text(compared(studies), folder=links)
    if name == "answer":
        return escape_markdown(answer(compared(studies)))
    times = _times(folder)
    if name == "machine":
        return escape_markdown(machine_sentence(times))
    return reproduce_table(times, studies, name.removeprefix("reproduce-"), folder=links)


def _times(folder: Path) -> dict[str, Any]:
    return read_data(data_folder(folder) / f"{TIMES}.json")


def fill_file(path: Path, folder: Path) -> bool:
    """Makes the parts of a document again; whether that changed it."""
    text = path.read_text(encoding="utf-8")
    if not _PART.search(text):
        raise ValueError(
            f"{path} has no part to fill, such as <!-- made: headline --> <!-- end -->"
        )
    filled = fill(text, folder, beside=path.parent)
    if filled == text:
        return False
    write_text(path, filled)
    return True
