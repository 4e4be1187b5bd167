"""Pages that people write: tables and pictures between markers are made from the data files.

    <!-- table: lengths differences | against: static 6/6 | method: CPT 3-8/8, N = 8; float32 -->
    <!-- end -->

    <!-- picture: lengths differences -->
    ![The alternative text](lengths.svg)

A marker names a data file and a table or picture of it. Options have values with `;` between them:
the `columns` to show, what a study is compared with (`against`), other data that it needs (`with`),
and by its heading the cells of the rows to show.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from tools.results.pictures import draw
from tools.results.study_data import Data, name_file_in_errors, read_data
from tools.results.tables import Options, make_table

END = "<!-- end -->"
MARKER = re.compile(r"<!-- (\w+)(?:: (.*?))? -->")
IMAGE = re.compile(r"\[?!\[[^\]]*\]\(([^)]+\.svg)\)")


def render(pages: Iterable[Path], folder: Path, *, has_pictures: bool = True) -> dict[Path, str]:
    """Path -> text of every page and of the pictures on it; writes nothing. folder: of the data."""
    files: dict[Path, str] = {}
    for page in pages:
        lines = iter(page.read_text(encoding="utf-8").split("\n"))
        with name_file_in_errors(page):
            kept: list[str] = []
            is_code = False
            for line in lines:
                kept.append(line)
                is_code ^= line.startswith("```")
                marker = MARKER.fullmatch(line)
                if marker is None or is_code:
                    continue
                if marker[1] == "table":
                    kept += [_make(make_table, marker[2], folder), _skip_to_end(line, lines)]
                elif marker[1] == "picture":
                    kept.append(next(lines, ""))
                    image = IMAGE.match(kept[-1])
                    if image is None:
                        raise ValueError(f"{line} must stand above the line of an .svg picture")
                    if has_pictures:
                        files[page.parent / image[1]] = _make(draw, marker[2], folder)
                else:
                    raise ValueError(f"{line} is no marker; known: table, picture")
            files[page] = "\n".join(kept)
    return files


def _skip_to_end(marker: str, lines: Iterator[str]) -> str:
    for line in lines:
        if line == END:
            return line
        if MARKER.fullmatch(line):
            break
    raise ValueError(f"{marker} has no {END}")


def _make(make: Callable[[Data, str, Options], str], words: str, folder: Path) -> str:
    """The table or picture of a marker."""
    name, kind, options = read_marker(words)
    others = {other: read_data(folder / f"{other}.json") for other in options.pop("with", ())}
    path = folder / f"{name}.json"
    with name_file_in_errors(path):
        return make({**read_data(path), "with": others}, kind, options)


def read_marker(words: str) -> tuple[str, str, dict[str, list[str]]]:
    """The name of the data, the kind of table or picture, and the options.

    >>> read_marker("lengths differences | against: static 6/6 | method: a, b; c")
    ('lengths', 'differences', {'against': ['static 6/6'], 'method': ['a, b', 'c']})
    """
    what, *rest = words.split(" | ")
    name, _, kind = what.partition(" ")
    parts = [part.partition(": ") for part in rest]
    if missing := [key for key, _, values in parts if not values]:
        raise ValueError(f"the option {missing[0]!r} has no value")
    return name, kind, {key: values.split("; ") for key, _, values in parts}


def outdated(files: Mapping[Path, str]) -> list[Path]:
    """The files that are not as they would be rendered. Another matplotlib draws other bytes."""
    return [path for path, text in files.items()
            if not path.exists() or path.read_text(encoding="utf-8") != text]  # fmt: skip
