"""Text into HTML, scripts and charts: the only place where markup is made, and all is escaped."""

from __future__ import annotations

import html
import json
from typing import Any

_VOID = ("br", "meta")  # elements without an end


class Html(str):
    """Markup that is safe as it stands. Only `tag`, `join` and `trusted` make it."""

    __slots__ = ()


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """An element; children and attributes that are not Html are escaped.

    class_ is `class`, other underscores are hyphens; None and False leave an attribute out.

    >>> tag("p", "1 < 2", tag("b", "!"), class_="note", hidden=True, data_value=0.5, id=None)
    '<p class="note" hidden data-value="0.5">1 &lt; 2<b>!</b></p>'
    """
    parts = [name]
    for key, value in attributes.items():
        attribute = key.rstrip("_").replace("_", "-")
        if value is True:
            parts.append(attribute)
        elif value is not None and value is not False:
            parts.append(f'{attribute}="{_escape(value)}"')
    start = f"<{' '.join(parts)}>"
    return Html(start if name in _VOID else f"{start}{join(*children)}</{name}>")


def join(*children: object) -> Html:
    """One after another; None is nothing.

    >>> join("a & b", None, tag("br"))
    'a &amp; b<br>'
    """
    return Html(
        "".join(
            child if isinstance(child, Html) else _escape(child)
            for child in children
            if child is not None
        )
    )


def _escape(value: object) -> str:
    """Bytes of a file name that are no UTF-8 become question marks."""
    return html.escape(str(value).encode("utf-8", "replace").decode("utf-8"))


def trusted(text: str) -> Html:
    """Text of our own files as markup. Never what a user, a run or a study wrote."""
    return Html(text)


def script_json(value: Any) -> Html:
    """JSON for the inside of a <script>, which no text in it can end.

    >>> print(script_json({"a": "</script>&"}))
    {"a":"\\u003c/script\\u003e\\u0026"}
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))  # ASCII: no U+2028 either
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Html(text)


def chart_text(text: object) -> str:
    """Text for a chart, where plotly would take <b>, <a> and %{x} for its own.

    >>> chart_text("<b>%{x}")
    '&lt;b&gt;%&#123;x}'
    """
    return html.escape(str(text), quote=False).replace("%{", "%&#123;")
