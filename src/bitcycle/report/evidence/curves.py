"""The metric over training, a line for each method of a study."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import TYPE_CHECKING

from bitcycle.extras import require
from bitcycle.report.study_look import INK, Look
from bitcycle.study.numbers import UNITS
from bitcycle.study.publish.restore import Evidence
from bitcycle.study.summary import GroupSummary, summarize

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FEWEST = 3  # evaluations, below which there is no curve
_LATE = 0.25  # of the steps, from where on all of it is in the panel
Curve = tuple[tuple[int, float], ...]


def has_curves(evidence: Evidence) -> bool:
    """Whether there are curves to draw, of no more methods than can be told apart."""
    labels = {row.method.label for row in evidence.result.methods}
    drawn = [_mean(curves) for curves in evidence.curves.values()]
    return (
        evidence.study.kind == "comparison"
        and bool(Look.of(labels).labels)
        and sum(len(curve) >= _FEWEST for curve in drawn) >= 2
    )


def draw_curves(evidence: Evidence) -> Figure:
    """A panel per group."""
    groups = [group for group in summarize(evidence.result) if group.done]
    look = Look.of(row.method.label for row in evidence.result.methods)
    module = require("matplotlib.figure", extra="report", purpose="pictures")
    figure: Figure = module.Figure(figsize=(7.6, 0.6 + 3.6 * len(groups)), layout="constrained")
    grid = figure.subplots(len(groups), 1, squeeze=False)
    for (axes,), group in zip(grid, groups, strict=True):
        _draw(axes, evidence, group, look)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", frameon=False, ncols=min(len(labels), 4),
        fontsize=9,
    )  # fmt: skip
    return figure


def _draw(axes: Axes, evidence: Evidence, group: GroupSummary, look: Look) -> None:
    late: list[float] = []
    for row in group.done:
        curve = _mean(evidence.curves[row.method.method.key])
        if len(curve) < _FEWEST:
            continue
        steps, values = zip(*curve, strict=True)
        late += [value for step, value in curve if step >= _LATE * steps[-1]]
        axes.plot(
            steps, values, color=look.colour(row), marker=look.marker(row), markersize=4,
            linewidth=1.3, label=row.label,
        )  # fmt: skip
    room = 0.08 * (max(late) - min(late)) or 0.5
    axes.set_ylim(min(late) - room, max(late) + room)  # what comes before leaves the panel
    seeds = sorted({len(row.method.values) for row in group.done})
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
    """Over the seeds, at the steps that all of them have."""
    found = [dict(curve) for curve in curves.values() if curve]
    if not found:
        return ()
    common = sorted(set.intersection(*(set(curve) for curve in found)))
    return tuple((step, fmean(curve[step] for curve in found)) for step in common)
