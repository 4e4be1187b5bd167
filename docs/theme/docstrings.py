"""Docstrings as Markdown for the reference: doctests, parameters, comments behind fields.

The project's docstrings are plain sentences. Markdown would read `>>>` as quotes within quotes and
run lines such as "seed: of the rounding" together, so both are rewritten on their way to a page.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any

from griffe import Attribute, Class, Docstring, Extension, Function, Module, Object

_COMMENT = re.compile(r"\s#\s(?P<text>(?!noqa|type:|fmt:).*)$")


class Readable(Extension):
    """Rewrites the docstrings of a package once all of it is known."""

    def on_package(self, *, pkg: Module, **more: Any) -> None:
        """Every module, class, function and attribute."""
        for obj in _objects(pkg):
            if obj.docstring is not None:
                obj.docstring.value = readable(obj.docstring.value, _names(obj))
            elif isinstance(obj, Attribute) and (comment := _comment(obj)):
                obj.docstring = Docstring(comment, parent=obj)


def readable(text: str, names: Collection[str]) -> str:
    """The docstring as Markdown; `names` are the parameters and attributes it may speak of.

    >>> print(readable("Adds. a, b: two numbers. c: a third.", ["a", "b", "c"]))
    Adds.
    <BLANKLINE>
    - `a`, `b`: two numbers.
    - `c`: a third.
    """
    return "\n\n".join(_paragraph(part, names) for part in re.split(r"\n{2,}", text))


def _paragraph(text: str, names: Collection[str]) -> str:
    words, doctest, code = text.partition(">>> ")
    if doctest and (not words or words.endswith("\n")):
        before = f"{_paragraph(words.rstrip(), names)}\n\n" if words.strip() else ""
        return f"{before}```pycon\n{doctest}{code}\n```"
    if not names or text.startswith(" "):
        return text
    name = "|".join(map(re.escape, names))
    lead = rf"(?:^|(?<=\. ))((?:{name})(?:, (?:{name}))*): "
    first, *pairs = re.split(lead, " ".join(line.strip() for line in text.splitlines()))
    if not pairs:
        return text
    items = [
        f"- {', '.join(f'`{one}`' for one in which.split(', '))}: {what.strip()}"
        for which, what in zip(pairs[::2], pairs[1::2], strict=True)
    ]
    return "\n".join(filter(None, [f"{first.strip()}\n" if first.strip() else "", *items]))


def _objects(obj: Object) -> Iterator[Object]:
    yield obj
    for member in obj.members.values():
        if isinstance(member, Object):  # no alias
            yield from _objects(member)


def _names(obj: Object) -> list[str]:
    if not isinstance(obj, Function | Class):
        return []
    names = [parameter.name for parameter in obj.parameters]
    if isinstance(obj, Class):
        names += [name for name in obj.all_members if not name.startswith("_")]
    return names


def _comment(attribute: Attribute) -> str | None:
    """What stands behind a class's field on its line."""
    if not isinstance(attribute.parent, Class) or not attribute.lines:
        return None
    found = _COMMENT.search(attribute.lines[-1])
    return None if found is None else found["text"]
