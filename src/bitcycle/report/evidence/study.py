"""The page of a study: its picture, its curves, its tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bitcycle.report.evidence.curves import draw_curves, has_curves
from bitcycle.report.evidence.front import draw_front
from bitcycle.report.evidence.lengths import draw_lengths, length_lines
from bitcycle.report.evidence.page import Page
from bitcycle.report.evidence.picture import plain_style, svg_text
from bitcycle.report.evidence.rows import finite, is_crowded
from bitcycle.report.study import draw_study
from bitcycle.study.publish.page import study_page
from bitcycle.study.publish.restore import Evidence, restore
from bitcycle.study.summary import summarize


def read_evidence(source: str, data: Mapping[str, Any]) -> Evidence:
    """The study of a file; source: its path, for errors."""
    return restore(data, source=source)


def render_study(name: str, evidence: Evidence) -> Page:
    """The page of a study that was read."""
    files: dict[str, str] = {}
    pictures: list[tuple[str, str]] = []
    if any(finite(group.done) for group in summarize(evidence.result)):
        with plain_style():
            if length_lines(evidence):
                files[f"{name}-lengths.svg"] = svg_text(draw_lengths(evidence))
                pictures.append(("Cyclic minus static bits against the length of a run",
                                 f"{name}-lengths.svg"))  # fmt: skip
            draw = draw_front if evidence.has_front else draw_study
            files[f"{name}.svg"] = svg_text(draw(evidence.result))
            pictures.append((_shows(evidence), f"{name}.svg"))
            if has_curves(evidence):
                files[f"{name}-curves.svg"] = svg_text(draw_curves(evidence))
                pictures.append(("The metric over training, mean of all seeds",
                                 f"{name}-curves.svg"))  # fmt: skip
    files[f"{name}.md"] = study_page(evidence, pictures)
    sentence = evidence.study.description
    return Page(title=name, file=f"{name}.md", sentence=sentence, files=files)


def _shows(evidence: Evidence) -> str:
    """For readers who do not see the picture."""
    if not evidence.has_front:
        return "Final value against length or start of the deficit"
    if is_crowded(summarize(evidence.result)):
        return "Final value of every method, with its training cost"
    return "Final value against training cost, the Pareto front dashed"
