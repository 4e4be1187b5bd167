"""A page with its pictures: what every kind of evidence becomes."""

from __future__ import annotations

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
