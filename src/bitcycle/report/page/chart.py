"""A chart on the page: a plotly figure as data, drawn by the page's script.

Figures are plain dicts. Fonts, margins and the colours of axes are the script's, so that a chart
follows the theme; a colour is text such as `var(--c0)` or `var(--ink)/0.3` (see style.css).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bitcycle.report.page.escape import Html, join, script_json, tag

Figure = dict[str, Any]


def figure(traces: Iterable[Mapping[str, Any]], *, height: int, **layout: Any) -> Figure:
    """Traces and a layout; `height` in pixels, the width is the page's."""
    return {"data": [dict(trace) for trace in traces], "layout": {"height": height, **layout}}


def line(x: Sequence[Any], y: Sequence[Any], **options: Any) -> dict[str, Any]:
    """A line without hover names of plotly's own."""
    return {"type": "scatter", "mode": "lines", "x": list(x), "y": list(y), **options}


def stairs(segments: Sequence[tuple[int, int, float | None]], **options: Any) -> dict[str, Any]:
    """(first step, end, height) as a line of steps; None is a gap.

    >>> drawn = stairs([(0, 10, 3), (10, 20, 8)])
    >>> drawn["x"], drawn["y"]
    ([0, 10, 20], [3, 8, 8])
    """
    x: list[int] = [start for start, _, _ in segments]
    y: list[float | None] = [height for _, _, height in segments]
    if segments:
        x.append(segments[-1][1])
        y.append(segments[-1][2])
    drawn = line(x, y)
    shape = {"shape": "hv", **options.pop("line", {})}
    return {**drawn, "line": shape, **options}


def chart(drawn: Figure, *, label: str) -> Html:
    """The place of a chart with its data; the label is for those who do not see it."""
    data = tag("script", script_json(drawn), type="application/json")
    height = int(drawn["layout"]["height"])
    return tag(
        "div", data, class_="chart", role="img", aria_label=label, style=f"height:{height}px"
    )


def card(title: str | None, *body: object, note: str | None = None) -> Html:
    """A framed part of a section with a heading and, below it, what a reader should know."""
    return tag(
        "article",
        None if title is None else tag("h3", title),
        *body,
        None if note is None else tag("p", note, class_="note"),
        class_="card",
    )


def choice(label: str, options: Mapping[str, Html]) -> Html:
    """One of several parts at a time, chosen from a list; a single one needs no list."""
    if len(options) == 1:
        return next(iter(options.values()))
    entries = [tag("option", name, value=i) for i, name in enumerate(options)]
    parts = [
        tag("div", part, class_="part", hidden=i > 0) for i, part in enumerate(options.values())
    ]
    picker = tag("label", f"{label} ", tag("select", *entries, autocomplete="off"), class_="pick")
    return tag("div", picker, *parts, class_="choice")


def section(anchor: str, title: str, *body: object) -> Html:
    """A part of the page with a heading; the menu leads to it."""
    return tag("section", tag("h2", title), join(*body), id=anchor)
