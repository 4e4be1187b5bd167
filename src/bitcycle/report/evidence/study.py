"""The page of a study: its picture, its curves, its tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bitcycle.report.evidence.curves import draw_curves, has_curves
from bitcycle.report.evidence.front import draw_front
from bitcycle.report.evidence.page import Page
from bitcycle.report.evidence.picture import plain_style, svg_text
from bitcycle.report.study import draw_study
from bitcycle.study.headline import headline
from bitcycle.study.publish.page import study_page
from bitcycle.study.publish.restore import Evidence, restore

_SHOWS = {
    "comparison": "Final value against training cost, the Pareto front dashed",
    "suite": "Final value against training cost of every schedule",
    "critical-periods": "Final value against length or start of the deficit",
}


def read_evidence(name: str, data: Mapping[str, Any]) -> Evidence:
    """The study of a file."""
    return restore(data, source=f"data/{name}.json")


def render_study(name: str, evidence: Evidence) -> Page:
    """The page of a study that was read."""
    files: dict[str, str] = {}
    pictures: list[tuple[str, str]] = []
    if evidence.result.count("done"):
        with plain_style():
            has_costs = evidence.study.kind != "critical-periods"
            draw = draw_front if has_costs else draw_study
            files[f"{name}.svg"] = svg_text(draw(evidence.result))
            pictures.append((_SHOWS[evidence.study.kind], f"{name}.svg"))
            if has_curves(evidence):
                files[f"{name}-curves.svg"] = svg_text(draw_curves(evidence))
                pictures.append(("The metric over training, mean of all seeds",
                                 f"{name}-curves.svg"))  # fmt: skip
    files[f"{name}.md"] = study_page(evidence, pictures)
    sentence = headline(evidence.result)
    return Page(title=name, file=f"{name}.md", sentence=sentence, files=files)
