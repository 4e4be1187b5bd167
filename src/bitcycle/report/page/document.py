"""The skeleton of the page: head, menu, sections, scripts, and what the browser may run."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from bitcycle.report.page.assets import script, style
from bitcycle.report.page.escape import Html, join, tag, trusted


@dataclass(frozen=True, kw_only=True)
class Page:
    """What a page says. menu: (anchor, title) of the sections."""

    title: str
    subtitle: str
    headline: str
    status: str
    notes: Sequence[str]
    menu: Sequence[tuple[str, str]]
    sections: Sequence[Html]
    footer: str


def render(page: Page, plotly: Html) -> str:
    """The whole file, with plotly's script.

    The policy lets the browser run our two scripts, told by their hashes, and nothing else, and
    reach no network: text of a run that looked like a script would stay text even unescaped.
    """
    scripts = (plotly, script())
    policy = (
        f"default-src 'none'; script-src {' '.join(map(_hash, scripts))}; "
        "style-src 'unsafe-inline'; img-src data: blob:"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{page.title} - bitcycle"),
        tag("style", style()),
    )
    body = tag("body", _header(page), tag("main", *page.sections), _footer(page),
               *(tag("script", text) for text in scripts))  # fmt: skip
    return join(trusted("<!DOCTYPE html>\n"), tag("html", head, body, lang="en"))


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _header(page: Page) -> Html:
    links = [tag("a", title, href=f"#{anchor}") for anchor, title in page.menu]
    button = tag("button", "dark", type="button", id="theme", aria_label="change light and dark")
    notes = tag("ul", *(tag("li", note) for note in page.notes)) if page.notes else None
    return tag(
        "header",
        tag("div", tag("h1", page.title), button, class_="top"),
        tag("p", page.subtitle, class_="subtitle") if page.subtitle else None,
        tag("p", page.headline, class_="headline"),
        tag("p", page.status, class_="status"),
        notes,
        tag("nav", *links, aria_label="sections"),
        tag("noscript", tag("p", "Charts and sorting need JavaScript; the numbers do not.")),
    )


def _footer(page: Page) -> Html:
    return tag("footer", tag("p", page.footer))
