"""Files of labelled sentence pairs: tab-separated, the first line names the columns.

One reader for every published layout, because each says where its columns are: MultiNLI as
translated for XNLI (premise, hypo, label), XNLI (language, gold_label, ..., sentence1, sentence2,
...), SNLI and MultiNLI as released (gold_label, ..., sentence1, sentence2, ...), and plain files
(premise, hypothesis, label in any order).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bitcycle.data.base import Place

COLUMNS = {
    "premise": ("premise", "sentence1"),
    "hypothesis": ("hypothesis", "hypo", "sentence2"),
    "label": ("label", "gold_label"),
}
LANGUAGE = "language"
NO_LABEL = "-"  # SNLI and MultiNLI: the annotators did not agree


class Row(NamedTuple):
    """One pair and the line of the file it stands on; language is "" where the file names none."""

    line: int
    premise: str
    hypothesis: str
    label: str
    language: str


def read_rows(place: Place, path: Path) -> Iterator[Row]:
    """Every pair of a file that has a label."""
    lines = _decoded_lines(place, path)
    first = next(lines, None)
    if first is None:
        raise place.damaged(path, "the file is empty")
    names = first[1].split("\t")
    wanted = {role: _find(place, path, names, role) for role in COLUMNS}
    language = names.index(LANGUAGE) if LANGUAGE in names else None
    columns = [*wanted.values()] + ([] if language is None else [language])
    num_needed, num_named = max(columns) + 1, len(names)
    is_empty = True
    for number, text in lines:
        cells = text.split("\t")
        if not num_needed <= len(cells) <= num_named:
            raise place.damaged(path, _wrong_number(number, len(cells), names))
        is_empty = False
        label = cells[wanted["label"]].strip()
        if label == NO_LABEL:
            continue
        yield Row(
            line=number,
            premise=cells[wanted["premise"]],
            hypothesis=cells[wanted["hypothesis"]],
            label=label,
            language="" if language is None else cells[language].strip(),
        )
    if is_empty:
        raise place.damaged(path, "there is no line after the names of the columns")


def _decoded_lines(place: Place, path: Path) -> Iterator[tuple[int, str]]:
    """Numbered from 1; only a newline ends a line, other separators of Unicode are text."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            try:
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                problem = f"line {number} is not UTF-8 text (byte {error.start} of the line)"
                raise place.damaged(path, problem) from None
            yield number, text.rstrip("\r\n")


def _find(place: Place, path: Path, names: list[str], role: str) -> int:
    for name in COLUMNS[role]:
        if name in names:
            return names.index(name)
    raise place.damaged(
        path,
        f"line 1 names no column for the {role} ({' or '.join(COLUMNS[role])}); it is "
        f"{_shortened(names)}. The first line must name the columns, with a tab between, such as "
        "premise, hypothesis, label",
    )


def _wrong_number(line: int, number: int, names: list[str]) -> str:
    return (
        f"line {line} has {number} tab-separated column{'s' * (number != 1)}, line 1 names "
        f"{len(names)}: {_shortened(names)}"
    )


def _shortened(names: list[str], most: int = 120) -> str:
    text = ", ".join(names)
    return text if len(text) <= most else f"{text[:most]}..."
