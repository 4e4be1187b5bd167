"""Precision range tests: of runs whose schedule says auto, and of the command beside them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bitcycle.range_test import RangeCurve
from bitcycle.report.page.chart import Figure, card, chart, figure, line, section
from bitcycle.report.page.escape import Html, chart_text, tag
from bitcycle.report.page.looks import colour
from bitcycle.report.page.numbers import MOST_POINTS, plain, thin
from bitcycle.report.page.recorded import RecordedMethod, read_object
from bitcycle.report.range_test import switching_point

MOST = 12
_NOTE = (
    "Faint: the metric of each step. Bold: its mean over the window. Dashed: the height at which "
    "the bits pass. Circle: where the first bits do."
)


def range_tests_section(methods: Sequence[RecordedMethod], folder: Path) -> Html | None:
    """None when there is no range test."""
    found: dict[str, RangeCurve] = {}
    for title, curve in _find(methods, folder):
        if curve not in found.values():
            found.setdefault(title, curve)
    if not found:
        return None
    cards = [
        card(
            title, chart(range_figure(curve), label=f"range test of {title}"), note=_verdict(curve)
        )
        for title, curve in list(found.items())[:MOST]
    ]
    note = tag("p", _NOTE, class_="note")
    return section("range-tests", "Precision range tests", tag("div", *cards, class_="grid"), note)


def _find(methods: Sequence[RecordedMethod], folder: Path) -> Iterator[tuple[str, RangeCurve]]:
    for method in methods:
        for run in method.begun:
            name = f"{method.title}, seed {run.seed}"
            result, directory = run.state.result, run.state.directory
            if result is not None and result.range_test is not None:
                yield from _curve(name, result.range_test.get("test"))
            beside = directory.with_name(f"{directory.name}-range-test")
            yield from _curve(name, read_object(beside / "range-test.json"))
    for path in sorted({folder / "range-test.json", *folder.glob("*-range-test/range-test.json")}):
        stored = read_object(path)
        yield from _curve(str((stored or {}).get("name")), stored)


def _curve(title: str, stored: Any) -> Iterator[tuple[str, RangeCurve]]:
    try:
        yield title, RangeCurve.from_dict(stored["curve"])
    except (KeyError, TypeError, ValueError):
        return


def _verdict(curve: RangeCurve) -> str:
    low = curve.first_passing
    gain = f"more than {curve.threshold:g} of {curve.name}"
    return f"no bits gain {gain}" if low is None else f"learns from {low} bits on: gains {gain}"


def range_figure(curve: RangeCurve) -> Figure:
    """The metric over the steps of the test, a colour per precision."""
    means = curve.window_means()
    traces: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    begin = 0
    for number, bits in enumerate(curve.precisions):
        end = begin + len(curve.metric_at(bits))
        steps = thin(range(begin, end), MOST_POINTS // 2)
        look = {"color": colour(number)}
        text = f"{bits} bits"
        hover = {
            "name": text,
            "hovertemplate": "%{fullData.name}, step %{x}: %{y:.4g}<extra></extra>",
        }
        each, mean = ([plain(values[step]) for step in steps] for values in (curve.metric, means))
        traces.append(line(steps, each, line={**look, "width": 1}, opacity=0.4, hoverinfo="skip"))
        traces.append(line(steps, mean, line={**look, "width": 2.4}, **hover))
        if math.isfinite(goal := curve.start(bits) + curve.threshold) and _is_judged(curve, bits):
            dash = {"color": "var(--ink)/0.7", "width": 1.2, "dash": "dash"}
            ends = [begin - 0.5, end - 0.5]
            traces.append(line(ends, [plain(goal)] * 2, line=dash, hoverinfo="skip"))
        notes.append({
            "x": (begin + end - 1) / 2, "y": 1, "yref": "paper", "yanchor": "bottom",
            "text": text if number == 0 else str(bits), "showarrow": False, "font": look,
        })  # fmt: skip
        begin = end
    if (point := switching_point(curve)) is not None:
        ring = {"symbol": "circle-open", "size": 15, "color": "var(--c1)", "line": {"width": 2}}
        dot = {"type": "scatter", "mode": "markers", "x": [point[0]], "y": [plain(point[1])]}
        traces.append({**dot, "marker": ring, "hoverinfo": "skip"})
    return figure(
        traces,
        height=280,
        showlegend=False,
        annotations=notes,
        xaxis={"title": {"text": "step of the test"}, "nticks": 6},
        yaxis={"title": {"text": chart_text(curve.name)}},
    )


def _is_judged(curve: RangeCurve, bits: int) -> bool:
    return curve.first_passing is None or bits <= curve.first_passing
