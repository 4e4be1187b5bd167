"""A study as pictures: metric against cost, spread over seeds, critical periods."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bitcycle.extras import require
from bitcycle.report import draw
from bitcycle.report.files import save
from bitcycle.report.study_look import INK, Look
from bitcycle.report.study_panels import (
    draw_cost,
    draw_names,
    draw_periods,
    draw_relation,
    draw_spread,
)
from bitcycle.study.results import StudyResult
from bitcycle.study.summary import GroupSummary, summarize

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Panel = Literal["cost", "relation", "spread", "periods"]
_MOST_BOXES = 12
_WIDTH, _HEIGHT = 5.4, 3.7


@draw.register(StudyResult)
def draw_study(result: StudyResult) -> Figure:
    """A row of panels per group.

    comparison: metric against cost and, from three seeds on, the spread over seeds. suite: cost
    against metric with the rank correlation. critical-periods: metric against what is varied.
    """
    groups = [group for group in summarize(result) if group.done]
    if not groups:
        raise ValueError(
            f"study {result.study.name!r} has no finished run to draw; "
            f"start it with: bitcycle study run {result.study.name}"
        )
    panels = _panels(result, groups)
    figure_module = require("matplotlib.figure", extra="report", purpose="pictures")
    figure: Figure = figure_module.Figure(
        figsize=(7.6 if len(panels) == 1 else _WIDTH * len(panels), 0.6 + _HEIGHT * len(groups)),
        layout="constrained",
    )
    grid = figure.subplots(len(groups), len(panels), squeeze=False)
    look = Look.of(row.label for group in groups for row in group.rows)
    for line, group in zip(grid, groups, strict=True):
        for axes, panel in zip(line, panels, strict=True):
            _draw_panel(axes, panel, group, look)
    if look.labels and "cost" in panels:
        handles = {
            h.get_label(): h for line in grid for h in line[0].get_legend_handles_labels()[0]
        }
        figure.legend(
            list(handles.values()), list(handles), loc="outside lower center", frameon=False,
            ncols=min(len(handles), 4), fontsize=9,
        )  # fmt: skip
    figure.suptitle(result.study.name, x=0.01, ha="left", fontsize=11, color=INK, weight="bold")
    if panels[0] == "relation" or (panels[0] == "cost" and not look.labels):
        figure.draw_without_rendering()  # names are placed by what lies where
        for line, group in zip(grid, groups, strict=True):
            draw_names(line[0], group, is_suite=panels[0] == "relation")
    return figure


def _panels(result: StudyResult, groups: list[GroupSummary]) -> list[Panel]:
    if result.study.kind == "critical-periods":
        return ["periods"]
    if result.study.kind == "suite":
        return ["relation"]
    has_spread = any(
        sum(len(row.method.values) >= 3 for row in group.rows) >= 2 for group in groups
    )
    is_small = all(len(group.rows) <= _MOST_BOXES for group in groups)
    return ["cost", "spread"] if has_spread and is_small else ["cost"]


def _draw_panel(axes: Axes, panel: Panel, group: GroupSummary, look: Look) -> None:
    drawing = {
        "cost": draw_cost, "relation": draw_relation, "spread": draw_spread,
        "periods": draw_periods,
    }  # fmt: skip
    drawing[panel](axes, group, look)


def save_study(result: StudyResult) -> list[Path]:
    """picture.png and picture.svg in the study's folder."""
    result.folder.mkdir(parents=True, exist_ok=True)
    figure = draw_study(result)
    return [save(figure, result.folder / f"picture.{kind}") for kind in ("png", "svg")]
