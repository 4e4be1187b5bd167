"""Final values as rows, a method each, where many cost the same and would cover each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bitcycle.report.study_look import INK
from bitcycle.study.numbers import UNITS, bitops_text, cost_text
from bitcycle.study.summary import GroupSummary, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FEWEST = 8  # methods, below which names find a place
_CLOSE = 0.03  # of the dearer one's cost
ROW = 0.27  # inches


def is_crowded(groups: Sequence[GroupSummary]) -> bool:
    """Whether a group has many methods and few costs."""
    return any(
        len(group.done) >= _FEWEST and _num_costs(group.done) <= len(group.done) / 2
        for group in groups
    )


def _num_costs(rows: Sequence[Row]) -> int:
    """Costs that are close to the one before are one."""
    costs = sorted(row.bitops for row in rows if row.bitops is not None)
    steps = zip(costs, costs[1:], strict=False)
    return sum(after - before > _CLOSE * after for before, after in steps) + bool(costs)


def draw_rows(axes: Axes, group: GroupSummary, rows: Sequence[Row]) -> None:
    """In the study's order, from the top; the cost stands at the end of the row."""
    axes.set_yticks(range(len(rows)), [row.label for row in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    for height, row in enumerate(rows):
        cost = bitops_text(row.bitops) if row.relative_cost is None else cost_text(
            row.relative_cost
        )  # fmt: skip
        axes.annotate(
            cost, (1, height), xycoords=("axes fraction", "data"), xytext=(6, 0),
            textcoords="offset points", va="center", fontsize=8, color=INK, annotation_clip=False,
        )  # fmt: skip
    is_relative = any(row.relative_cost is not None for row in rows)
    axes.annotate(
        f"cost, {group.baseline} = 1" if is_relative else "cost", (1, 1),
        xycoords="axes fraction", xytext=(0, 6), textcoords="offset points", ha="right",
        fontsize=8, color=INK, annotation_clip=False,
    )  # fmt: skip
    unit = UNITS.get(group.metric, "").strip()
    axes.set_xlabel(f"test {group.metric}{f', {unit}' if unit else ''}", color=INK)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=9)
    axes.tick_params(axis="y", length=0, labelsize=8)


def finite(rows: Sequence[Row]) -> list[Row]:
    """Those whose mean can be drawn."""
    return [row for row in rows if row.summary is not None and math.isfinite(row.summary.mean)]
