"""Write the page of a study, or of run folders, as one HTML file."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Any

from bitcycle.extras import require
from bitcycle.files import write_text
from bitcycle.version import VERSION
from bitcycle_lab.report.figures.style import counted
from bitcycle_lab.report.files import check_path
from bitcycle_lab.report.page import sections
from bitcycle_lab.report.page.svg import inline_svg
from bitcycle_lab.report.runs import method_logs
from bitcycle_lab.study.comparison import collect_runs, settings_table
from bitcycle_lab.study.results import StudyResult
from bitcycle_lab.study.summary import study_notes, summarize

FILE_NAME = "report.html"
_MOST_POINTS, _FEWEST_POINTS = 200, 20  # of a curve
_ALL_POINTS = 20_000  # of all curves of a page


def write_page(
    result: StudyResult,
    path: str | Path | None = None,
    *,
    source: str | None = None,
    cards: Iterable[sections.Card] = (),
) -> Path:
    """Write the page of a study; by default report.html in the study's folder.

    source: the study's name or file, for the command that repeats it. cards: further figures,
    before those of its first group.
    """
    template = Template()  # first: without the extra nothing is computed
    if path is None:
        result.folder.mkdir(parents=True, exist_ok=True)
    target = check_path(path or result.folder / FILE_NAME, ".html")
    command = sections.study_command(result, source)
    page = page_context(result, result.folder, command)
    page["groups"][0].cards[:0] = cards
    write_text(target, template.render(page))
    return target


def write_run_page(directories: Iterable[str | Path], path: str | Path) -> Path:
    """Write the page of runs without a study; runs of one configuration are its seeds."""
    template = Template()
    target = check_path(path, ".html")
    result = collect_runs(directories)
    page = page_context(result, target.parent, None)
    page["settings"] = settings_table(result)
    write_text(target, template.render(page))
    return target


class Template:
    """page.html with style.css, page.js and the figures, so that the page needs no network."""

    def __init__(self) -> None:
        jinja2 = require("jinja2", extra="report", purpose="report pages")
        require("matplotlib", extra="report", purpose="report pages")
        numbers = count()
        environment = jinja2.Environment(
            autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        environment.globals |= {
            "style_css": _asset("style.css"),
            "page_js": _asset("page.js"),
            "svg": lambda figure: inline_svg(figure, f"figure {next(numbers)}"),
        }
        self._template = environment.from_string(_asset("page.html"))

    def render(self, page: dict[str, Any]) -> str:
        """The whole file. Bytes of file names that are not UTF-8 become question marks."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing from font")  # browsers have more
            text: str = self._template.render(page)
        return text.encode("utf-8", "replace").decode("utf-8")


def _asset(name: str) -> str:
    return files("bitcycle_lab.report.page").joinpath(name).read_text(encoding="utf-8")


def page_context(result: StudyResult, folder: Path, command: str | None) -> dict[str, Any]:
    """The variables of the template. command: repeats all runs, if one command does."""
    methods = method_logs(result)
    limit = points_per_curve(3 * result.num_runs)
    layer_cards, layer_problems = sections.layer_cards(methods)
    counts = [f"{result.count('done')} done"]
    counts += [f"{n} {word}" for s, word in sections.STATES.items() if (n := result.count(s))]
    total = f"{counted([len(result.methods)], 'method')}, {counted([result.num_runs], 'run')}"
    return {
        "study": result.study,
        "notes": study_notes(result),
        "status": f"{total}: {', '.join(counts)}",
        "num_runs": result.num_runs,
        "unfinished": sections.unfinished_runs(result),
        "settings": None,
        "groups": [sections.group_section(g, methods, limit=limit) for g in summarize(result)],
        "schedules": sections.schedule_cards(methods),
        "layers": layer_cards,
        "layer_problems": layer_problems,
        "range_tests": sections.range_test_cards(methods, folder),
        "landscapes": sections.landscape_cards(methods, folder),
        "most": sections.MOST,
        "command": command,
        "reproductions": [sections.reproduction(method) for method in methods],
        "environments": sections.environments(methods),
        "version": VERSION,
        "now": f"{datetime.now(UTC):%Y-%m-%d at %H:%M} UTC",
    }


def points_per_curve(num_curves: int) -> int:
    """How many points each of so many curves may have.

    >>> points_per_curve(3), points_per_curve(300), points_per_curve(100_000)
    (200, 66, 20)
    """
    return max(_FEWEST_POINTS, min(_MOST_POINTS, _ALL_POINTS // max(1, num_curves)))
