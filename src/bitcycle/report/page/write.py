"""From a study's result, or from run folders, to one HTML file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from bitcycle.report.files import check_path
from bitcycle.report.page.assets import plotly_script
from bitcycle.report.page.chart import section
from bitcycle.report.page.curves import curves_card
from bitcycle.report.page.document import Page, render
from bitcycle.report.page.environment import environment_section
from bitcycle.report.page.escape import Html, tag
from bitcycle.report.page.landscapes import landscapes_section
from bitcycle.report.page.layers import layers_section
from bitcycle.report.page.looks import Look
from bitcycle.report.page.numbers import points_per_curve
from bitcycle.report.page.pareto import pareto_card
from bitcycle.report.page.periods import periods_card
from bitcycle.report.page.range_tests import range_tests_section
from bitcycle.report.page.recorded import RecordedMethod, record
from bitcycle.report.page.reproduce import reproduce_section, study_command
from bitcycle.report.page.runs import collect_runs
from bitcycle.report.page.schedules import schedules_section
from bitcycle.report.page.table import results_card
from bitcycle.report.page.undone import WORDS, undone_card
from bitcycle.study.headline import headline
from bitcycle.study.numbers import summary_text
from bitcycle.study.results import StudyResult
from bitcycle.study.summary import GroupSummary, summarize
from bitcycle.train.files import write_text
from bitcycle.version import VERSION

FILE_NAME = "report.html"


def write_page(result: StudyResult, path: str | Path | None = None) -> Path:
    """The page of a study; by default report.html in the study's own folder."""
    plotly = plotly_script()  # first: without it nothing is computed
    if path is None:
        result.folder.mkdir(parents=True, exist_ok=True)
    target = check_path(path or result.folder / FILE_NAME, ".html")
    page = _page(result, result.folder, headline(result), study_command(result))
    write_text(target, render(page, plotly))
    return target


def write_run_page(directories: Iterable[str | Path], path: str | Path) -> Path:
    """The page of runs that belong to no study; those of one configuration are its seeds."""
    plotly = plotly_script()
    target = check_path(path, ".html")
    result = collect_runs(directories)
    page = _page(result, target.parent, _final_values(result), None)
    write_text(target, render(page, plotly))
    return target


def _page(result: StudyResult, folder: Path, said: str, command: str | None) -> Page:
    methods = record(result)
    limit = points_per_curve(3 * result.num_runs)
    groups = [_group(group, methods, limit) for group in summarize(result)]
    parts: list[tuple[str, str, Html | None]] = [
        ("results", "Results", section("results", "Results", undone_card(result), *groups)),
        ("schedules", "Schedules", schedules_section(methods)),
        ("layers", "Cost by layer", layers_section(methods)),
        ("range-tests", "Range tests", range_tests_section(methods, folder)),
        ("landscapes", "Landscapes", landscapes_section(methods, folder)),
        ("reproduce", "Reproduce", reproduce_section(methods, command)),
        ("environment", "Environment", environment_section(methods)),
    ]
    now = datetime.now(UTC)
    return Page(
        title=result.study.name,
        subtitle=result.study.description,
        headline=said,
        status=_status(result),
        notes=result.study.notes,
        menu=[(anchor, title) for anchor, title, part in parts if part is not None],
        sections=[part for _, _, part in parts if part is not None],
        footer=f"Written by bitcycle {VERSION} on {now:%Y-%m-%d} at {now:%H:%M} UTC.",
    )


def _status(result: StudyResult) -> str:
    counts = [f"{result.count('done')} done"]
    counts += [f"{n} {word}" for state, word in WORDS.items() if (n := result.count(state))]
    total = f"{_count(len(result.methods), 'method')}, {_count(result.num_runs, 'run')}"
    return f"{total}: {', '.join(counts)}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"


def _group(group: GroupSummary, methods: Sequence[RecordedMethod], limit: int) -> Html:
    """Table, legend and charts of methods that are compared with each other."""
    own = [method for method in methods if method.result.method.group == group.group]
    return tag(
        "div",
        tag("h2", group.group, class_="group") if group.group else None,
        results_card(group),
        _legend(own),
        pareto_card(group),
        periods_card(group),
        curves_card(own, group.metric, limit),
        class_="compared",
    )


def _legend(methods: Sequence[RecordedMethod]) -> Html:
    """A button per method: pressed means shown."""
    buttons = [
        tag(
            "button", Look(number).sample(), tag("span", method.label),
            type="button", aria_pressed="true", data_key=method.key,
        )
        for number, method in enumerate(methods)
    ]  # fmt: skip
    hint = tag("span", "click: show or hide; double click: only this", class_="note")
    return tag("div", *buttons, hint, class_="legend", role="group", aria_label="methods shown")


def _final_values(result: StudyResult) -> str:
    """What there is to say of runs without a question."""
    said = [
        f"{row.label}: {group.metric} {summary_text(row.summary)}"
        for group in summarize(result)
        for row in group.done
        if row.summary is not None
    ]
    few = said[:3] + ([f"{len(said) - 3} more below"] if len(said) > 3 else [])
    return "; ".join(few) or "no run is done yet"
