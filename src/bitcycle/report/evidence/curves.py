"""The metric over training, a line for each method of a study."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean
from typing import TYPE_CHECKING

from bitcycle.extras import require
from bitcycle.report.study_look import INK, Look
from bitcycle.study.numbers import UNITS
from bitcycle.study.publish.restore import Evidence
from bitcycle.study.summary import GroupSummary, Row, summarize

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FEWEST = 3  # evaluations, below which there is no curve
_LATE = 0.25  # of the steps, from where on all of it is in the panel
Curve = tuple[tuple[int, float], ...]


def has_curves(evidence: Evidence) -> bool:
    """Whether there are curves to draw, of no more methods than can be told apart."""
    labels = {row.method.label for row in evidence.result.methods}
    return (
        evidence.study.kind == "comparison"
        and bool(Look.of(labels).labels)
        and any(_group_curves(evidence, group) for group in summarize(evidence.result))
    )


def _group_curves(evidence: Evidence, group: GroupSummary) -> list[tuple[Row, Curve]]:
    """Of the methods that have one; none where only one has, which compares nothing."""
    found = [(row, _mean(evidence.curves[row.method.method.key])) for row in group.done]
    drawn = [(row, curve) for row, curve in found if len(curve) >= _FEWEST]
    return drawn if len(drawn) > 1 else []


def draw_curves(evidence: Evidence) -> Figure:
    """A panel per group that has curves."""
    groups = [group for group in summarize(evidence.result) if _group_curves(evidence, group)]
    look = Look.of(row.method.label for row in evidence.result.methods)
    module = require("matplotlib.figure", extra="report", purpose="pictures")
    figure: Figure = module.Figure(figsize=(7.6, 0.6 + 3.6 * len(groups)), layout="constrained")
    grid = figure.subplots(len(groups), 1, squeeze=False)
    for (axes,), group in zip(grid, groups, strict=True):
        _draw(axes, evidence, group, look)
    known: dict[str, Artist] = {}  # a method may be in one panel only
    for (axes,) in grid:
        handles, labels = axes.get_legend_handles_labels()
        known |= dict(zip(labels, handles, strict=True))
    figure.legend(
        list(known.values()), list(known), loc="outside lower center", frameon=False,
        ncols=min(len(known), 4), fontsize=9,
    )  # fmt: skip
    return figure


def _draw(axes: Axes, evidence: Evidence, group: GroupSummary, look: Look) -> None:
    late: list[float] = []
    rows = _group_curves(evidence, group)
    for row, curve in rows:
        steps, values = zip(*curve, strict=True)
        late += [value for step, value in curve if step >= _LATE * steps[-1]]
        axes.plot(
            steps, values, color=look.colour(row), marker=look.marker(row), markersize=4,
            linewidth=1.3, label=row.label,
        )  # fmt: skip
    room = 0.08 * (max(late) - min(late)) or 0.5
    axes.set_ylim(min(late) - room, max(late) + room)  # what comes before leaves the panel
    curves = [evidence.curves[row.method.method.key].values() for row, _ in rows]
    seeds = sorted({sum(bool(curve) for curve in each) for each in curves})
    number = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    plural = "" if number == "1" else "s"
    place = f"{group.group}: " if group.group else ""
    axes.set_title(f"{place}over training, mean of {number} seed{plural}", loc="left", fontsize=9,
                   color=INK)  # fmt: skip
    unit = UNITS.get(group.metric, "").strip()
    axes.set_ylabel(f"test {group.metric}{f', {unit}' if unit else ''}", color=INK)
    axes.set_xlabel("training step", color=INK)
    axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=9)


def _mean(curves: Mapping[int, Curve]) -> Curve:
    """Over the seeds, at the steps that all of them have and where the mean is a number."""
    found = [dict(curve) for curve in curves.values() if curve]
    if not found:
        return ()
    common = sorted(set.intersection(*(set(curve) for curve in found)))
    points = ((step, fmean(curve[step] for curve in found)) for step in common)
    return tuple((step, mean) for step, mean in points if math.isfinite(mean))
