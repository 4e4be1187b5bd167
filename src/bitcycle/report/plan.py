"""A plan as a picture: the bits of its schedules over the run, and what each saves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from bitcycle.cost.plan_result import Plan, Row
from bitcycle.extras import require
from bitcycle.report import draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK, _LINE, _FILL = "#333333", "#1f4e9c", "#c9d8f0"
_COLUMNS = 3
_PANELS = 12


@draw.register(Plan)
def draw_plan(plan: Plan, *, limit: int = _PANELS) -> Figure:
    """The first `limit` lines of the table, dearest first: a panel of bits over steps for each.

    All panels have the same axes; the dashed line is the plan's upper bound.
    """
    if limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    figure_module = require("matplotlib.figure", extra="report", purpose="pictures")
    lines = plan.lines()
    shown = [row for row, _ in lines[:limit]]
    num_columns = min(_COLUMNS, len(shown))
    num_rows = math.ceil(len(shown) / num_columns)
    figure: Figure = figure_module.Figure(
        figsize=(0.6 + 3.5 * num_columns, 1.1 + 1.7 * num_rows), layout="constrained"
    )
    panels = figure.subplots(num_rows, num_columns, sharex=True, sharey=True, squeeze=False)
    for axes, row in zip(panels.flat, shown, strict=False):
        _draw_panel(axes, row, plan)
    for axes in panels.flat[len(shown) :]:
        axes.set_axis_off()
    for column in range(num_columns):  # the lowest panel that is drawn carries the steps
        last = panels[(len(shown) - 1 - column) // num_columns, column]
        last.tick_params(labelbottom=True)
        last.set_xlabel("step", color=_INK)
    for axes in panels[:, 0]:
        axes.set_ylabel("bits", color=_INK)
    share = 1 - plan.budget / plan.upper_bound
    budget = f"save at least {share:.1%} of" if share > 0 else "cost less than"
    title = f"{len(plan.rows):,} schedules {budget} {plan.bound_name}"
    few = f"; the {len(shown)} dearest kinds of {len(lines)}" if len(shown) < len(lines) else ""
    figure.suptitle(f"{title}{few}", x=0.01, ha="left", fontsize=11, color=_INK)
    return figure


def _draw_panel(axes: Axes, row: Row, plan: Plan) -> None:
    heights = [32 if run.bits is None else run.bits for run in row.runs]
    edges = [0, *(run.stop for run in row.runs)]
    floor = plan.low - 0.6
    axes.stairs(heights, edges, baseline=floor, fill=True, color=_FILL, linewidth=0)
    axes.stairs(heights, edges, baseline=None, color=_LINE, linewidth=1.0)
    axes.axhline(plan.high, color=_INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=0.9)
    axes.set_xlim(0, plan.total_steps)
    axes.set_ylim(floor, plan.high + 0.6)
    stride = math.ceil((plan.high - plan.low) / 6)
    axes.set_yticks(range(plan.high, plan.low - 1, -stride))
    axes.locator_params(axis="x", nbins=4)
    axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=_INK, labelsize=8)
    axes.set_title(row.forward, loc="left", fontsize=9, color=_INK, fontweight="bold")
    axes.set_title(f"saves {row.saving:.1%}", loc="right", fontsize=8, color=_INK)
