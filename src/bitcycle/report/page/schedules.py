"""The schedules: a small chart for each distinct set, with the methods that have it."""

from __future__ import annotations

from collections.abc import Sequence

from bitcycle.report.page.bits import is_adaptive, schedules_of, segments_of
from bitcycle.report.page.chart import card, chart, figure, section, stairs
from bitcycle.report.page.escape import Html, chart_text, tag
from bitcycle.report.page.looks import colour
from bitcycle.report.page.recorded import RecordedMethod

MOST = 24  # charts
_NAMES = {"weight": "weights", "act": "activations", "error": "errors", "grad": "gradients"}


def schedules_section(methods: Sequence[RecordedMethod]) -> Html | None:
    """None when every method is float32."""
    sets: dict[tuple[object, ...], list[RecordedMethod]] = {}
    for method in methods:
        found = schedules_of(method)
        if set(found) != {"fp32"}:
            adapts = any(is_adaptive(text) for text in found)
            key = (repr(found), method.num_steps, method.key if adapts else None)
            sets.setdefault(key, []).append(method)
    if not sets:
        return None
    cards = [_card(same) for same in list(sets.values())[:MOST]]
    left = len(sets) - len(cards)
    note = (
        tag("p", f"{left} more sets of schedules are not shown.", class_="note") if left else None
    )
    return section("schedules", "Schedules", tag("div", *cards, class_="grid"), note)


def _card(same: Sequence[RecordedMethod]) -> Html:
    method = same[0]
    traces, captions, heights = [], [], []
    for number, (text, roles) in enumerate(schedules_of(method).items()):
        segments = segments_of(text, method, roles[0].partition(" ")[0])
        named = ", ".join(_NAMES.get(role, role) for role in roles)
        captions.append(_caption(number, f"{named}: {text}"))
        if not any(bits is not None for _, _, bits in segments):
            continue
        heights += [bits for _, _, bits in segments if bits is not None]
        traces.append(
            stairs(
                segments,
                line={"color": colour(number), "width": 2, "dash": ("solid", "dot")[number % 2]},
                name=chart_text(named),
                hovertemplate="%{fullData.name}<br>from step %{x:,}: %{y} bits<extra></extra>",
            )
        )
    low, high = min(heights, default=0), max(heights, default=8)
    drawn = figure(
        traces,
        height=190,
        showlegend=False,
        xaxis={"title": {"text": "step"}, "nticks": 5, "range": [0, max(1, method.num_steps)]},
        yaxis={
            "title": {"text": "bits"}, "range": [low - 0.6, high + 0.6], "tickmode": "linear",
            "dtick": max(1, -(-(high - low) // 5)), "fixedrange": True,
        },
    )  # fmt: skip
    shown = [each.title for each in same]
    title = ", ".join(shown[:4]) + (f" and {len(shown) - 4} more" if len(shown) > 4 else "")
    body = chart(drawn, label=f"bits over steps of {title}")
    return card(title, body, tag("ul", *captions, class_="captions"))


def _caption(number: int, text: str) -> Html:
    dots = "2 4" if number % 2 else None
    line = tag("path", d="M0 6H26", stroke=colour(number), stroke_width=3, stroke_dasharray=dots)
    return tag("li", tag("svg", line, width=26, height=12, aria_hidden="true"), " ", text)
