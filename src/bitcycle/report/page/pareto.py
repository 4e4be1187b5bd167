"""The final metric against training cost, with error bars and the Pareto front."""

from __future__ import annotations

import math
from typing import Any

from bitcycle.report.page.chart import card, chart, figure, line
from bitcycle.report.page.escape import Html, chart_text
from bitcycle.report.page.looks import Look
from bitcycle.report.page.numbers import cost_unit, plain
from bitcycle.study.numbers import bitops_text, summary_text
from bitcycle.study.summary import GroupSummary, Row

_NOTE = (
    "Small: one run. Large: the mean over seeds; the bar is the 95 % confidence interval of the "
    "mean, where two seeds or more give one. Dashed: the Pareto front, where no method is both "
    "cheaper and better."
)
_WIDE = 3.0  # costs this many times apart get a logarithmic axis


def pareto_card(group: GroupSummary) -> Html | None:
    """None when nothing is done."""
    numbered = [(number, row) for number, row in enumerate(group.rows) if row.bitops]
    if not numbered:
        return None
    size, unit = cost_unit(max(row.bitops for _, row in numbered if row.bitops))
    traces = [_front([row for _, row in numbered], size)]
    for number, row in numbered:
        traces += _method(row, Look(number), size)
    costs = [row.bitops / size for _, row in numbered if row.bitops]
    drawn = figure(
        traces,
        height=400,
        showlegend=False,
        hovermode="closest",
        xaxis=_cost_axis(costs, unit),
        yaxis={"title": {"text": chart_text(f"final {group.metric}")}},
    )
    label = f"final {group.metric} against training cost in BitOPs"
    title = f"{group.metric.capitalize()} against training cost"
    return card(title, chart(drawn, label=label), note=_NOTE)


def _front(rows: list[Row], size: float) -> dict[str, Any]:
    """Up to the dearest method: beyond its last point nothing is gained."""
    points = sorted(
        (row.bitops, row.summary.mean)
        for row in rows
        if row.is_on_front and row.bitops is not None and row.summary is not None
    )
    dearest = max(row.bitops for row in rows if row.bitops is not None)
    points.append((dearest, points[-1][1]))
    return line(
        [plain(cost / size) for cost, _ in points],
        [plain(mean) for _, mean in points],
        line={"color": "var(--ink)/0.5", "width": 1.5, "dash": "dash", "shape": "hv"},
        hoverinfo="skip",
    )


def _method(row: Row, look: Look, size: float) -> list[dict[str, Any]]:
    assert row.summary is not None
    assert row.bitops is not None
    key = row.method.method.key
    runs = {
        "type": "scatter", "mode": "markers",
        "x": [plain(run.cost["bitops"] / size) for run in row.method.results.values()],
        "y": [plain(value) for value in row.method.values.values()],
        "marker": {"symbol": f"{look.marker}-open", "size": 8, "color": look.colour},
        "opacity": 0.8,
        "customdata": list(row.method.values),
        "name": chart_text(row.label),
        "hovertemplate": "%{fullData.name}, seed %{customdata}: %{y:.4g}<extra></extra>",
        "meta": key,
    }  # fmt: skip
    value = f"{summary_text(row.summary)} (n = {row.summary.n})"
    mean = {
        "type": "scatter", "mode": "markers",
        "x": [plain(row.bitops / size)], "y": [plain(row.summary.mean)],
        "marker": {"symbol": look.marker, "size": 13, "color": look.colour,
                   "line": {"width": 1.5, "color": "var(--card)"}},
        "error_y": _interval(row, look),
        "name": f"{chart_text(row.label)}<br>{value}",
        "hovertemplate": f"%{{fullData.name}}<br>{bitops_text(row.bitops)}<extra></extra>",
        "meta": key,
    }  # fmt: skip
    return [runs, mean] if row.summary.n > 1 else [mean]


def _interval(row: Row, look: Look) -> dict[str, Any]:
    summary = row.summary
    if summary is None or summary.low is None or summary.high is None:
        return {"visible": False}
    return {
        "type": "data", "symmetric": False, "color": look.colour, "thickness": 1.5, "width": 5,
        "array": [plain(summary.high - summary.mean)],
        "arrayminus": [plain(summary.mean - summary.low)],
    }  # fmt: skip


def _cost_axis(costs: list[float], unit: str) -> dict[str, Any]:
    """Logarithmic, with ticks at 1, 2, 5 of every decade, where the costs are far apart."""
    title = {"text": f"training cost, {unit}"}
    if max(costs) < _WIDE * min(costs):
        return {"title": title}
    low, high = math.log10(min(costs)), math.log10(max(costs))
    room = 0.08 * (high - low)
    marks = (1, 2, 5) if high - low < 2.5 else (1,)
    powers = range(math.floor(low) - 1, math.ceil(high) + 1)
    ticks = [float(f"{mark}e{power}") for power in powers for mark in marks]
    return {
        "title": title, "type": "log", "range": [low - room, high + room],
        "tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks],
    }  # fmt: skip
