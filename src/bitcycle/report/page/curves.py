"""Learning curves, with the bits of each method as a band underneath."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bitcycle.report.page.bits import weight_segments
from bitcycle.report.page.chart import Figure, card, chart, choice, figure, line, stairs
from bitcycle.report.page.escape import Html, chart_text
from bitcycle.report.page.looks import Look, colour
from bitcycle.report.page.numbers import plain, thin
from bitcycle.report.page.recorded import Recorded, RecordedMethod

_FEW = 30  # points of a curve that get a marker each
_FILLED = 4  # methods whose bands are filled; more would hide each other
_NOTE = (
    "Thin: one run. Thick: the mean over seeds. Below: the bits of the weights at every step; "
    "float32 has none, and where layers differ it is the most."
)


@dataclass(frozen=True)
class Quantity:
    """What a curve shows: a number of the log lines of one kind."""

    kind: str  # eval or train
    key: str
    title: str


def curves_card(methods: Sequence[RecordedMethod], metric: str, limit: int) -> Html | None:
    """A chart for the metric and one for each loss; None when nothing was logged."""
    options = {}
    for quantity in _quantities(methods, metric):
        drawn = _figure(methods, quantity, limit)
        label = f"{quantity.title} over training steps, with the bits underneath"
        options[quantity.title] = chart(drawn, label=label)
    if not options:
        return None
    return card("Learning curves", choice("Show", options), note=_NOTE)


def _quantities(methods: Sequence[RecordedMethod], metric: str) -> list[Quantity]:
    lines = [line for method in methods for run in method.begun for line in run.metrics]
    splits = {str(line.get("split")) for line in lines if line.get("kind") == "eval"}
    on = " and ".join(sorted(splits))
    wanted = [
        Quantity("eval", metric, f"{on} {metric}"),
        Quantity("train", "loss", "training loss"),
        Quantity("eval", "loss", f"{on} loss"),
    ]
    return [
        q for q in wanted if any(line.get("kind") == q.kind and q.key in line for line in lines)
    ]


def _figure(methods: Sequence[RecordedMethod], quantity: Quantity, limit: int) -> Figure:
    traces: list[dict[str, Any]] = []
    for number, method in enumerate(methods):
        traces += _curves(method, Look(number), quantity, limit)
    bands = []
    for number, method in enumerate(methods):
        if band := _band(method, number, is_filled=len(methods) <= _FILLED):
            bands.append(band)
    axes: dict[str, Any] = {
        "xaxis": {"title": {"text": "step"}, "rangemode": "tozero", "anchor": "y2"},
        "yaxis": {"title": {"text": chart_text(quantity.title)}, "domain": [0.36, 1.0]},
        "yaxis2": {
            "title": {"text": "bits"}, "domain": [0.0, 0.27], "dtick": 1, "fixedrange": True,
            "tickmode": "linear", **_bits_range(bands),
        },
    }  # fmt: skip
    if not bands:
        axes = {"xaxis": {"title": {"text": "step"}}, "yaxis": {"title": axes["yaxis"]["title"]}}
    return figure([*traces, *bands], height=480 if bands else 360, showlegend=False, **axes)


def _bits_range(bands: Sequence[dict[str, Any]]) -> dict[str, Any]:
    heights = [y for band in bands for y in band["y"] if y is not None]
    if not heights:
        return {}
    low, high = min(heights), max(heights)
    return {"range": [low - 0.7, high + 0.7], "dtick": max(1, -(-(high - low) // 5))}


def _curves(
    method: RecordedMethod, look: Look, quantity: Quantity, limit: int
) -> list[dict[str, Any]]:
    """The runs, thin, and their mean; a single run is its own mean."""
    runs = [(run, _points(run, quantity)) for run in method.begun]
    runs = [(run, points) for run, points in runs if points]
    traces = []
    if len(runs) > 1:
        traces = [
            _trace(thin(points, limit), f"{method.label}, seed {run.seed}", method, look, 1.0)
            for run, points in runs
        ]
    mean = _mean([points for _, points in runs])
    if mean:
        what = "mean of seeds" if len(runs) > 1 else f"seed {runs[0][0].seed}"
        traces.append(_trace(thin(mean, limit), f"{method.label}, {what}", method, look, 2.4))
    return traces


Points = list[tuple[int, float]]


def _points(run: Recorded, quantity: Quantity) -> Points:
    found = {
        int(line["step"]): float(line[quantity.key])
        for line in run.metrics
        if line.get("kind") == quantity.kind and isinstance(line.get(quantity.key), int | float)
    }
    return sorted(found.items())


def _mean(curves: Sequence[Points]) -> Points:
    """At the steps that all have."""
    if not curves:
        return []
    tables = [dict(points) for points in curves]
    common = sorted(set(tables[0]).intersection(*tables[1:]))
    return [(step, sum(table[step] for table in tables) / len(tables)) for step in common]


def _trace(
    points: Points, name: str, method: RecordedMethod, look: Look, width: float
) -> dict[str, Any]:
    is_thin = width < 2
    has_markers = len(points) <= _FEW and not is_thin
    return line(
        [step for step, _ in points],
        [plain(value) for _, value in points],
        mode="lines+markers" if has_markers else "lines",
        line={"color": look.colour, "width": width, "dash": "solid" if is_thin else look.dash},
        marker={"symbol": look.marker, "size": 7, "color": look.colour},
        opacity=0.4 if is_thin else 1.0,
        name=chart_text(name),
        hovertemplate="%{fullData.name}<br>step %{x:,}: %{y:.4g}<extra></extra>",
        meta=method.key,
    )


def _band(method: RecordedMethod, number: int, *, is_filled: bool) -> dict[str, Any] | None:
    segments = weight_segments(method)
    if not any(bits is not None for _, _, bits in segments):
        return None
    filled = {"fill": "tozeroy", "fillcolor": colour(number, 0.12)} if is_filled else {}
    return stairs(
        segments,
        line={"color": colour(number), "width": 1.6 if is_filled else 1.0},
        yaxis="y2",
        name=chart_text(method.label),
        hovertemplate="%{fullData.name}<br>from step %{x:,}: %{y} bits<extra></extra>",
        meta=method.key,
        **filled,
    )
