"""A page with its pictures: what every kind of evidence becomes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Page:
    """title and sentence: for the page of all pages. files: name -> text of all that is written."""

    title: str
    file: str
    sentence: str
    files: dict[str, str] = field(default_factory=dict)


def made_from(name: str) -> str:
    """The first line of a page."""
    return f"<!-- made by bitcycle from data/{name}.json; an edit here is lost -->"


def again(name: str) -> str:
    """How a page is made a second time."""
    file = f"data/{name}.json"
    return f"`bitcycle study publish --render results` makes this page again from [{file}]({file})."


def block(*commands: str) -> str:
    """Commands to be read and copied."""
    return "```text\n" + "\n".join(commands) + "\n```"


def folders(commands: Sequence[str]) -> str:
    """What the words in capitals mean, if there are any.

    >>> folders(["bitcycle train a --data.root DATA --output RUNS"])
    ' DATA and RUNS stand for folders.'
    """
    found = sorted(set(re.findall(r"(?<![\w-])[A-Z]{4,}(?![\w-])", " ".join(commands))))
    if not found:
        return ""
    *others, last = found
    names = f"{', '.join(others)} and {last} stand" if others else f"{last} stands"
    return f" {names} for {'folders' if others else 'a folder'}."


def exactly(number: float) -> str:
    """Short, but the very number.

    >>> exactly(20.0), exactly(200 / 7), exactly(3)
    ('20', '28.571428571428573', '3')
    """
    return f"{number:g}" if float(f"{number:g}") == number else repr(number)
