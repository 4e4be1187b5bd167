"""The sections of the report page: the data that the template shows."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from bitcycle.extras import MissingExtraError
from bitcycle.range_criteria import RangeTest
from bitcycle_lab.landscape.result import FILE_NAME as LANDSCAPE_FILE
from bitcycle_lab.landscape.result import Landscape, Landscapes
from bitcycle_lab.report import plot
from bitcycle_lab.report.figures import layers, pareto, schedules
from bitcycle_lab.report.figures.curves import draw_curves, quantities
from bitcycle_lab.report.figures.landscape import make_levels
from bitcycle_lab.report.figures.style import Style
from bitcycle_lab.report.runs import MethodLog, read_object
from bitcycle_lab.study import number_text as numbers
from bitcycle_lab.study.number_text import duration_text
from bitcycle_lab.study.results import RunStatus, State, StudyResult, read_options
from bitcycle_lab.study.statistics import Summary, summarize_values
from bitcycle_lab.study.study import StudyOptions
from bitcycle_lab.study.study_file import study_names
from bitcycle_lab.study.summary import GroupSummary, MethodSummary, metric_title
from bitcycle_lab.train.config_changes import is_free
from bitcycle_lab.train.config_file import to_yaml
from bitcycle_lab.train.run_directory import RunDirectory

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STATES: dict[State, str] = {"failed": "failed", "started": "not finished", "missing": "not begun"}
MOST = {  # of a kind on one page
    "schedules": 24, "layers": 12, "range-tests": 12, "landscapes": 12, "runs": 40,
    "environments": 6,
}  # fmt: skip
NO_ENVIRONMENT = ("command", "config", "history")  # what else env.json holds, of one run each
_WIDTH = 5.6  # inches: readable at half the width of the page, and on a phone
_MOST_BANDS = 6  # methods whose bits are drawn below their curves
_COST_NOTE = (
    "Dashed: the Pareto front, where no method is both cheaper and better. Dotted: a method that "
    "costs several times as much as the others."
)
_CURVES_NOTE = "Thin: one run. Thick: the mean over seeds."
_BITS_NOTE = "Below: the bits of the weights at every step; where layers differ, the most."


@dataclass(frozen=True)
class Card:
    """A figure with its heading. label: for readers who do not see it. captions: its lines."""

    title: str
    draw: Callable[[], Figure]
    label: str
    note: str = ""
    captions: Sequence[tuple[Style, str]] = ()


@dataclass(frozen=True)
class Cell:
    """The text of a table cell, and what the column is sorted by; None sorts last."""

    text: object
    key: float | str | None


EMPTY = Cell("-", None)


@dataclass(frozen=True)
class ResultRow:
    """A method of the results table. badges: (state, text) of runs that are not done."""

    style: Style
    label: str
    is_on_front: bool
    badges: Sequence[tuple[State, str]]
    cells: Sequence[Cell]


@dataclass(frozen=True)
class ResultsTable:
    """The results of a group. columns: (title, whether it holds text), after the method's name."""

    title: str
    columns: Sequence[tuple[str, bool]]
    rows: Sequence[ResultRow]


@dataclass(frozen=True)
class GroupSection:
    """The methods that are compared with each other."""

    name: str
    table: ResultsTable
    methods: Sequence[tuple[Style, MethodLog]]
    cards: Sequence[Card]


# -- results --------------------------------------------------------------------------------------


def group_section(group: GroupSummary, methods: Sequence[MethodLog], *, limit: int) -> GroupSection:
    """Table and figures of a group. limit: the most points per curve."""
    own = [method for method in methods if method.method.group == group.group]
    cards = []
    costs, periods = pareto.cost_panel(group), pareto.period_panel(group)
    if costs.points:
        title = f"{group.metric.capitalize()} against training cost"
        note = _COST_NOTE if costs.layout == "points" else ""
        cards.append(Card(title, partial(pareto.draw_panel, costs, _WIDTH), title, note))
    if len(periods.points) > 1:
        label = f"{periods.y_title} against {periods.x_title}"
        cards.append(Card("Critical periods", partial(pareto.draw_panel, periods, _WIDTH), label))
    for number, quantity in enumerate(quantities(own, group.metric)):
        with_bits = number == 0 and len(own) <= _MOST_BANDS
        drawn = partial(draw_curves, own, quantity, limit=limit, width=_WIDTH, with_bits=with_bits)
        label = f"{quantity.title} over steps{', and the bits' if with_bits else ''}"
        note = f"{_CURVES_NOTE} {_BITS_NOTE}" if with_bits else _CURVES_NOTE
        cards.append(Card(quantity.title.capitalize(), drawn, label, note))
    styled = [(Style(number), method) for number, method in enumerate(own)]
    return GroupSection(
        name=group.group,
        table=results_table(group),
        methods=styled,
        cards=cards,
    )


def results_table(group: GroupSummary) -> ResultsTable:
    """One row per method; columns without any value are left out."""
    rows = [_cells(group, method) for method in group.methods]
    filled = [title for title in rows[0] if any(row[title].key is not None for row in rows)]
    return ResultsTable(
        title=f"Final {group.metric}",
        columns=[(title, title in ("verdict", "evaluated at", "published")) for title in filled],
        rows=[
            ResultRow(
                style=Style(number),
                label=method.label,
                is_on_front=method.is_on_front,
                badges=[
                    (state, f"{n} {word}")
                    for state, word in STATES.items()
                    if (n := method.result.count(state))
                ],
                cells=[row[title] for title in filled],
            )
            for number, (method, row) in enumerate(zip(group.methods, rows, strict=True))
        ],
    )


def _cells(group: GroupSummary, method: MethodSummary) -> dict[str, Cell]:
    runs, difference = list(method.result.results.values()), method.difference
    published = [str(p) for p in method.method.published if p.metric == group.metric]
    return {
        metric_title(group.metric): _summary_cell(method.summary),
        "seeds": _number_cell(len(runs) or None, str),
        f"against {group.baseline}": (
            Cell(numbers.difference_text(difference), difference.mean) if difference else EMPTY
        ),
        "p": _number_cell(difference.p if difference else None, numbers.p_text),
        "verdict": _text_cell([verdict] if (verdict := group.verdict(method)) else []),
        f"cost, {group.baseline} = 1": _number_cell(method.relative_cost, numbers.cost_text),
        "training cost": _number_cell(method.bitops, numbers.bitops_text),
        "best by validation": _weights_cell([run.best for run in runs], group.metric),
        "averaged weights": _weights_cell([run.swa for run in runs], group.metric),
        "evaluated at": _text_cell(sorted({run.eval_precision for run in runs})),
        "published": _text_cell(published),
        "time of a run": _number_cell(
            fmean(run.seconds for run in runs) if runs else None, duration_text
        ),
    }


def _number_cell(number: float | None, write: Callable[[Any], str]) -> Cell:
    return EMPTY if number is None else Cell(write(number), number)


def _text_cell(found: Sequence[str]) -> Cell:
    return Cell("; ".join(found), found[0]) if found else EMPTY


def _summary_cell(summary: Summary | None) -> Cell:
    return EMPTY if summary is None else Cell(numbers.summary_text(summary), summary.mean)


def _weights_cell(evaluations: Sequence[Mapping[str, float] | None], metric: str) -> Cell:
    """The metric with other weights than the last, of the runs that have them."""
    found = [each[metric] for each in evaluations if each is not None and metric in each]
    return _summary_cell(summarize_values(found) if found else None)


@dataclass(frozen=True)
class UnfinishedRuns:
    """Runs that are not in the results. rows: state, its name, method, seeds, why."""

    num_runs: int
    rows: Sequence[tuple[State, str, str, str, str]]
    num_left_out: int


def unfinished_runs(result: StudyResult) -> UnfinishedRuns | None:
    """A row for each method, state and reason, failed runs first; None if all runs are done."""
    seeds: dict[tuple[State, str, str], list[int]] = {}
    for state in STATES:
        for method in result.methods:
            for run in method.runs:
                if run.state == state:
                    key = (state, method.method.key, run.error or "")
                    seeds.setdefault(key, []).append(run.seed)
    if not seeds:
        return None
    rows = [
        (state, STATES[state], name, ", ".join(map(str, numbers)), why)
        for (state, name, why), numbers in seeds.items()
    ]
    shown = rows[: MOST["runs"]]
    return UnfinishedRuns(sum(map(len, seeds.values())), shown, len(rows) - len(shown))


# -- figures --------------------------------------------------------------------------------------


def schedule_cards(methods: Sequence[MethodLog]) -> list[Card]:
    """A card per distinct set of schedules."""
    return [
        Card(
            panel.title,
            partial(schedules.draw_panel, panel),
            f"bits over steps of {panel.title}",
            captions=[(Style(each.number), each.label) for each in panel.lines],
        )
        for panel in schedules.method_panels(methods)
    ]


def layer_cards(methods: Sequence[MethodLog]) -> tuple[list[Card], list[str]]:
    """A card per method with a folder, and why others have none. Builds and traces the models."""
    begun = [method for method in methods if method.started]
    cards, problems = [], []
    for method in begun[: MOST["layers"]]:
        try:
            cost = layers.price_method(method)
        except (ValueError, OSError, RuntimeError, NotImplementedError, MissingExtraError) as error:
            problems.append(f"{method.title}: not known before training ({error})")
            continue
        label = f"training cost by layer of {method.title}"
        cards.append(Card(method.title, partial(plot, cost), label))
    if len(begun) > MOST["layers"]:
        problems.append(f"{len(begun) - MOST['layers']} more methods: see `bitcycle cost`")
    return cards, problems


def range_test_cards(methods: Sequence[MethodLog], folder: Path) -> list[Card]:
    """The range tests of runs with `auto`, and those in folders next to the runs."""
    found: dict[str, RangeTest] = {}
    for title, stored in _range_tests(methods, folder):
        try:
            test = RangeTest.from_dict(stored["test"])
        except (KeyError, TypeError, ValueError):
            continue
        if test not in found.values():
            found.setdefault(title, test)
    return [
        Card(title, partial(plot, test), f"range test of {title}") for title, test in found.items()
    ]


def _range_tests(methods: Sequence[MethodLog], folder: Path) -> Iterator[tuple[str, Any]]:
    for method in methods:
        for run in method.started:
            name = f"{method.title}, seed {run.seed}"
            if run.result is not None:
                yield name, run.result.range_test
            sibling = run.directory.with_name(f"{run.directory.name}-range-test")
            yield name, read_object(sibling / "range-test.json")
    for path in sorted({folder / "range-test.json", *folder.glob("*-range-test/range-test.json")}):
        stored = read_object(path)
        yield str((stored or {}).get("name")), stored


def landscape_cards(methods: Sequence[MethodLog], folder: Path) -> list[Card]:
    """The landscapes in the folders of the runs and of the study, on common levels."""
    places = [
        (f"{method.title}, seed {run.seed}", path)
        for method in methods
        for run in method.started
        for path in sorted(run.directory.glob(f"*{LANDSCAPE_FILE}"))
    ]
    places += [("", path) for path in sorted(folder.glob(f"*{LANDSCAPE_FILE}"))]
    found: list[tuple[str, Landscape]] = []
    for name, path in places:
        try:
            item = Landscape.read(path)
        except (ValueError, OSError):
            continue
        found.append((f"{name or item.label} at {item.precision}", item))
    grids = dict.fromkeys(item.alphas for _, item in found)  # common levels need a common grid
    cards = []
    for grid in grids:
        same = [(title, item) for title, item in found if item.alphas == grid]
        try:
            levels = make_levels(Landscapes(tuple(item for _, item in same)))
        except ValueError:  # no finite loss
            continue
        for title, item in same:
            drawn = partial(plot, item, kind="contour", levels=levels)
            cards.append(Card(title, drawn, f"loss landscape of {title}"))
    return cards


# -- how the runs were made -----------------------------------------------------------------------


@dataclass(frozen=True)
class Reproduction:
    """The commands that repeat a method. runs: seed, folder, digest of the weights, kernels.

    changed: settings and data that changed when a run was resumed; the commands do not repeat that.
    """

    title: str
    file: str
    commands: str
    config: str
    runs: Sequence[tuple[int, str, str, str]]
    changed: Sequence[str]


def study_command(result: StudyResult, source: str | None = None) -> str | None:
    """The command that ran the study last; None if its file is unknown. source: name or file."""
    name = result.study.name
    source = source or (name if name in study_names() else None)
    if source is None:
        return None
    options = read_options(result.output, name) or StudyOptions()
    words = ["bitcycle", "study", "run", source]
    if result.output != Path("runs"):
        words += ["--output", str(result.output)]
    if options.seeds is not None:
        words += ["--seeds", *map(str, options.seeds)]
    threads = options.threads or options.default_threads
    if threads is not None:
        words += ["--threads", str(threads)]
    return shlex.join([*words, *options.overrides])


def reproduction(method: MethodLog) -> Reproduction:
    """How to repeat a method, from the configuration of its first run that has a folder."""
    file = f"{method.config.name}.yaml"
    again = ["--output", "again"]  # never into the folder of the run that is repeated
    commands = [
        shlex.join(["bitcycle", "train", file, "--seed", str(run.seed), *again])
        for run in method.runs
    ]
    return Reproduction(
        title=method.title,
        file=file,
        commands="\n".join(commands),
        config=_config_text(method),
        runs=[
            (
                run.seed,
                run.directory.name,
                run.result.weights_sha256[:16],
                _kernels(run.result.kernels),
            )
            for run in method.runs
            if run.result is not None
        ],
        changed=[text for run in method.started for text in _changed(run)],
    )


def _changed(run: RunStatus) -> list[str]:
    found = []
    for event in RunDirectory(run.directory).read_history():
        words = [str(change) for change in event.changes if not is_free(change)]
        if words := words + list(event.warnings):
            found.append(f"seed {run.seed}, from step {event.step} on: {'; '.join(words)}")
    return found


def _config_text(method: MethodLog) -> str:
    for run in method.started:
        try:
            return (run.directory / "config.yaml").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
    return to_yaml(method.runs[0].config if method.runs else method.config)


def _kernels(kernels: Mapping[str, str]) -> str:
    names = list(kernels.values())
    counts = {name: names.count(name) for name in sorted(set(names))}
    return ", ".join(f"{name}: {n} layers" for name, n in counts.items()) or "float32"


@dataclass(frozen=True)
class Environments:
    """Versions and hardware. counts: runs per column; rows: a property and its value in each."""

    counts: Sequence[int]
    rows: Sequence[tuple[str, Sequence[str]]]
    num_left_out: int


def environments(methods: Sequence[MethodLog]) -> Environments | None:
    """A column per distinct environment, most runs first; None if no run has a folder."""
    found: list[tuple[dict[str, Any], int]] = []
    for run in (run for method in methods for run in method.started):
        stored = RunDirectory(run.directory).read_environment()
        own = {key: value for key, value in stored.items() if key not in NO_ENVIRONMENT}
        known = next((i for i, (other, _) in enumerate(found) if other == own), None)
        if known is not None:
            found[known] = (own, found[known][1] + 1)
        elif own:
            found.append((own, 1))
    if not found:
        return None
    shown = sorted(found, key=lambda entry: -entry[1])[: MOST["environments"]]
    keys = dict.fromkeys(key for own, _ in shown for key in own)
    rows = [
        (
            key.replace("_", " "),
            ["-" if own.get(key) is None else str(own[key]) for own, _ in shown],
        )
        for key in keys
    ]
    return Environments([count for _, count in shown], rows, len(found) - len(shown))
