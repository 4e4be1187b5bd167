"""All pages of a folder from its data files; what else lies there is left alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bitcycle.report.evidence.landscapes import (
    gather_landscapes,
    is_landscape,
    merge_landscapes,
    render_landscapes,
)
from bitcycle.report.evidence.memory import gather_memory, is_memory, render_memory
from bitcycle.report.evidence.page import Page
from bitcycle.report.evidence.range_tests import (
    gather_range_tests,
    is_range_test,
    merge_range_tests,
    render_range_tests,
)
from bitcycle.report.evidence.speed import gather_speed, is_speed, render_speed
from bitcycle.report.evidence.study import read_evidence, render_study
from bitcycle.study.publish.jsontext import to_json
from bitcycle.study.publish.overview import overview_page
from bitcycle.study.publish.restore import Evidence, damaged, read_data
from bitcycle.train.files import write_text

OVERVIEW = "README.md"
OURS = "<!-- made by bitcycle"  # how our pages begin
DAMAGE = (KeyError, TypeError, IndexError, AttributeError, ValueError, ArithmeticError)
TIMES = "studies"  # the file of what all studies take, for docs/reproduce.md

Data = Mapping[str, Any]
T = TypeVar("T")


class Kind(NamedTuple):
    """A kind of measurement: how its files are known, gathered and shown."""

    name: str  # of the data file and the page
    fits: Callable[[Data], bool]
    gather: Callable[[Sequence[Data]], dict[str, Any]]
    render: Callable[[str, Data], Page]
    merge: Callable[[Data, Data], dict[str, Any]] | None = None  # the old with the new


KINDS = {
    "speed": Kind("speed", is_speed, gather_speed, render_speed),
    "memory": Kind("memory", is_memory, gather_memory, render_memory),
    "range-tests": Kind(
        "range-tests", is_range_test, gather_range_tests, render_range_tests, merge_range_tests
    ),  # fmt: skip
    "landscapes": Kind(
        "landscapes", is_landscape, gather_landscapes, render_landscapes, merge_landscapes
    ),  # fmt: skip
}


def data_folder(folder: Path) -> Path:
    """Where the files are that pages are made from."""
    return folder / "data"


def read_folder(
    folder: Path, new: Mapping[str, Data] | None = None
) -> tuple[list[Evidence], list[tuple[str, Data]]]:
    """(studies, others by name), each in the order of the pages.

    new: by name, what will be in the folder's files.
    """
    studies: list[Evidence] = []
    others: list[tuple[str, Data]] = []
    coming = {data_folder(folder) / f"{name}.json": data for name, data in (new or {}).items()}
    for path in sorted({*data_folder(folder).glob("*.json"), *coming}):
        data = coming[path] if path in coming else read_data(path)
        if data["kind"] == "study":
            studies.append(_read_study(path, data))
        elif data["kind"] in KINDS:
            others.append((path.stem, data))
        elif data["kind"] != TIMES:
            known = ", ".join(["study", *KINDS])
            raise ValueError(f"{path} has the kind {data['kind']!r}; known: {known}")
    return studies, others


def _read_study(path: Path, data: Data) -> Evidence:
    evidence = read_evidence(str(path), data)
    if evidence.study.name != path.stem:
        raise ValueError(
            f"{path} is of the study {evidence.study.name!r}: give the file its name, "
            f"{evidence.study.name}.json, or publish the study again"
        )
    return evidence


def render_folder(folder: Path, new: Mapping[str, Data] | None = None) -> dict[str, str]:
    """File name -> text of every page and picture of the folder; writes nothing.

    new: by name, what will be in the folder's files.
    """
    studies, others = read_folder(folder, new)
    pages = [_render(folder, evidence.study.name, render_study, evidence) for evidence in studies]
    more = [_render(folder, name, KINDS[data["kind"]].render, data) for name, data in others]
    files: dict[str, str] = {}
    for page in (*pages, *more):
        for name in files.keys() & page.files.keys():
            raise ValueError(f"{page.title} and another page of {folder} both have a file {name}")
        files |= page.files
    listed = [(page.title, page.file, page.sentence) for page in more]
    files[OVERVIEW] = overview_page(studies, listed)
    return files


def _render(folder: Path, name: str, render: Callable[[str, T], Page], contents: T) -> Page:
    try:
        return render(name, contents)
    except DAMAGE as error:
        raise damaged(data_folder(folder) / f"{name}.json", error) from None


def write_folder(folder: Path) -> list[Path]:
    """Makes every page of the folder again; the paths of what changed."""
    return _write(folder, render_folder(folder))


def publish(folder: Path, name: str, data: Data) -> list[Path]:
    """Adds to the data and makes all pages again, or changes nothing; the paths of what changed."""
    data = json.loads(to_json(_merged(folder, name, data)))  # what a later reading will find
    files = render_folder(folder, {name: data})
    _check_ours(folder, files)
    return [add_data(folder, name, data), *_write(folder, files)]


def _merged(folder: Path, name: str, data: Data) -> Data:
    """With what the folder has of its kind, where a page is of many measurements."""
    kind, path = KINDS.get(data["kind"]), data_folder(folder) / f"{name}.json"
    if kind is None or kind.merge is None or not path.exists():
        return data
    try:
        return kind.merge(read_data(path), data)
    except DAMAGE as error:
        raise damaged(path, error) from None


def add_data(folder: Path, name: str, data: Data) -> Path:
    """The file of one page, whole or not at all."""
    if data["kind"] == "study" and name in (*KINDS, TIMES, Path(OVERVIEW).stem):
        raise ValueError(f"a study cannot be published as {name!r}, which is another page's name")
    data_folder(folder).mkdir(parents=True, exist_ok=True)
    path = data_folder(folder) / f"{name}.json"
    write_text(path, to_json(data))
    return path


def _write(folder: Path, files: Mapping[str, str]) -> list[Path]:
    _check_ours(folder, files)
    changed = []
    for name, text in files.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            write_text(path, text)
            changed.append(path)
    return changed


def _check_ours(folder: Path, files: Mapping[str, str]) -> None:
    """Pages that someone wrote by hand are not replaced."""
    for name in files:
        path = folder / name
        if not name.endswith(".md") or not path.exists():
            continue
        if not path.read_text(encoding="utf-8", errors="replace").startswith(OURS):
            raise ValueError(
                f"{path} was not made by bitcycle study publish and would be replaced; give "
                "another folder"
            )


def gather_files(paths: Sequence[Path]) -> tuple[str, dict[str, Any]]:
    """(name, data) of a page made of files that other commands wrote, all of one kind."""
    contents = [_read(path) for path in paths]
    kinds = [next((k for k in KINDS.values() if k.fits(data)), None) for data in contents]
    for path, kind in zip(paths, kinds, strict=True):
        if kind is None:
            raise ValueError(
                f"{path} is none of: {', '.join(KINDS)}; give what bitcycle bench --json, "
                "range-test, landscape or benchmarks/saved_memory.py --json wrote"
            )
    names = list(dict.fromkeys(kind.name for kind in kinds if kind is not None))
    if len(names) > 1:
        raise ValueError(f"files of several kinds ({', '.join(names)}): publish them one by one")
    try:
        return names[0], KINDS[names[0]].gather(contents)
    except DAMAGE as error:
        files = ", ".join(map(str, paths))
        raise ValueError(f"{_why(error)} (in {files}); measure again") from None


def _why(error: Exception) -> str:
    return f"{error}" if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path} holds no mapping")
    return data
