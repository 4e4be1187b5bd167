"""The sections of the report page: the data that the template shows."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from bitcycle_lab.study.study import StudyOptions, plain_name
from bitcycle_lab.study.study_file import study_names
from bitcycle_lab.study.summary import GroupSummary, column_decimals, metric_title
from bitcycle_lab.train.config_changes import is_free
from bitcycle_lab.train.config_file import to_yaml
from bitcycle_lab.train.result import RunResult
from bitcycle_lab.train.run_directory import MACHINE, RunDirectory

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STATES: dict[State, str] = {"failed": "failed", "started": "not finished", "missing": "not begun"}
MOST = {  # of a kind on one page
    "schedules": 24, "layers": 12, "range-tests": 12, "landscapes": 12, "runs": 40,
    "environments": 6,
}  # fmt: skip
# what else env.json holds, of one run each
NO_ENVIRONMENT = ("command", "config", "history", "imports")
WIDTH = 5.6  # inches: readable at half the width of the page, and on a phone
_MOST_VALUES = 4  # in a cell of the environment
_MOST_BANDS = 6  # methods whose bits are drawn below their curves
_FRONT_NOTE = "Dashed: the Pareto front, where no method is both cheaper and better."
_FAR_NOTE = "Dotted: a method that costs several times as much as the others."
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
    note: str


@dataclass(frozen=True)
class GroupSection:
    """The methods that are compared with each other."""

    name: str
    table: ResultsTable
    methods: Sequence[tuple[Style, MethodLog]]
    cards: list[Card]


# -- results --------------------------------------------------------------------------------------


def group_section(group: GroupSummary, methods: Sequence[MethodLog], *, limit: int) -> GroupSection:
    """Table and figures of a group. limit: the most points per curve."""
    own = [method for method in methods if method.method.group == group.group]
    cards = []
    costs, periods = pareto.cost_panel(group), pareto.period_panel(group)
    if costs.points:
        title = f"{group.metric.capitalize()} against training cost"
        is_drawn = {_FRONT_NOTE: len(costs.front) > 1, _FAR_NOTE: bool(costs.lines)}
        note = _sentences(is_drawn) if costs.layout == "points" else ""
        cards.append(Card(title, partial(pareto.draw_panel, costs, WIDTH), title, note))
    if len(periods.points) > 1:
        label = f"{periods.y_title} against {periods.x_title}"
        cards.append(Card("Critical periods", partial(pareto.draw_panel, periods, WIDTH), label))
    for number, quantity in enumerate(quantities(own, group.metric)):
        with_bits = number == 0 and len(own) <= _MOST_BANDS
        drawn = partial(draw_curves, own, quantity, limit=limit, width=WIDTH, with_bits=with_bits)
        label = f"{quantity.title} over steps{', and the bits' if with_bits else ''}"
        has_seeds = any(len(method.started) > 1 for method in own)
        note = _sentences({_CURVES_NOTE: has_seeds, _BITS_NOTE: with_bits})
        cards.append(Card(quantity.title.capitalize(), drawn, label, note))
    styled = [(Style(number), method) for number, method in enumerate(own)]
    return GroupSection(
        name=group.group,
        table=results_table(group),
        methods=styled,
        cards=cards,
    )


def _sentences(is_true: Mapping[str, bool]) -> str:
    return " ".join(sentence for sentence, is_shown in is_true.items() if is_shown)


def results_table(group: GroupSummary) -> ResultsTable:
    """One row per method; columns without any value are left out."""
    rows = _rows(group)
    has_seeds = any(each.summary is not None and each.summary.n > 1 for each in group.methods)
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
        note=_sentences(
            {
                f"Final values{', mean ± standard deviation over seeds' * has_seeds}.": True,
                "Differences are paired by seed, with their 95 % confidence interval.": (
                    has_seeds and f"against {group.baseline}" in filled
                ),
                "◆: on the Pareto front.": bool(group.front),
                "A click on a heading sorts.": len(rows) > 1,
            }
        ),
    )


def _rows(group: GroupSummary) -> list[dict[str, Cell]]:
    """The cells of every method by heading; the numbers of a column have equal decimals."""
    decimals = column_decimals(group.methods)
    of_costs = numbers.cost_decimals(each.relative_cost for each in group.methods)
    spent = numbers.bitops_texts([each.bitops for each in group.methods])
    rows = []
    for method, bitops in zip(group.methods, spent, strict=True):
        runs, difference = list(method.result.results.values()), method.difference
        values = [method.summary, *(_with_weights(runs, key, group) for key in ("best", "swa"))]
        value, best, averaged = (_summary_cell(each, decimals.value) for each in values)
        published = [str(p) for p in method.method.published if p.metric == group.metric]
        row = {
            metric_title(group.metric): value,
            "seeds": _number_cell(len(runs) or None, str),
            f"against {group.baseline}": EMPTY,
            "p": _number_cell(difference.p if difference else None, numbers.p_text),
            "verdict": _text_cell([verdict] if (verdict := group.verdict(method)) else []),
            f"cost, {group.baseline} = 1": _number_cell(
                method.relative_cost, lambda cost: numbers.cost_text(cost, of_costs)
            ),
            "training cost": EMPTY if method.bitops is None else Cell(bitops, method.bitops),
            "best by validation": best,
            "averaged weights": averaged,
            "evaluated at": _text_cell(sorted({run.eval_precision for run in runs})),
            "published": _text_cell(published),
            "time of a run": _number_cell(
                fmean(run.seconds for run in runs) if runs else None, duration_text
            ),
        }
        if difference is not None:
            text = numbers.difference_text(difference, decimals.difference)
            row[f"against {group.baseline}"] = Cell(text, difference.mean)
        rows.append(row)
    return rows


def _number_cell(number: float | None, write: Callable[[Any], str]) -> Cell:
    return EMPTY if number is None else Cell(write(number), number)


def _text_cell(found: Sequence[str]) -> Cell:
    return Cell("; ".join(found), found[0]) if found else EMPTY


def _summary_cell(summary: Summary | None, decimals: int) -> Cell:
    return EMPTY if summary is None else Cell(numbers.summary_text(summary, decimals), summary.mean)


def _with_weights(runs: Sequence[RunResult], key: str, group: GroupSummary) -> Summary | None:
    """The metric with other weights than the last, of the runs that have them."""
    evaluations = [getattr(run, key) or {} for run in runs]
    found = [each[group.metric] for each in evaluations if group.metric in each]
    return summarize_values(found) if found else None


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
    file = f"{plain_name(method.config)}.yaml"
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
    """A column per machine, most runs first; None if no run has a folder.

    Runs on one machine may differ in other things, such as the git revision: all are listed.
    """
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {}  # method and environment of each run
    for method in methods:
        for run in method.started:
            stored = RunDirectory(run.directory).read_environment()
            own = {key: value for key, value in stored.items() if key not in NO_ENVIRONMENT}
            machine = json.dumps([own.get(key) for key in MACHINE], default=str)
            if own:
                found.setdefault(machine, []).append((method.title, own))
    if not found:
        return None
    shown = sorted(found.values(), key=len, reverse=True)[: MOST["environments"]]
    keys = dict.fromkeys(key for runs in shown for _, own in runs for key in own)
    rows = [
        (key.replace("_", " "), [_distinct(own.get(key) for _, own in runs) for runs in shown])
        for key in keys
    ]
    if len(shown) > 1:
        rows.insert(0, ("methods", [_distinct(title for title, _ in runs) for runs in shown]))
    return Environments([len(runs) for runs in shown], rows, len(found) - len(shown))


def _distinct(values: Iterable[Any]) -> str:
    """Each value once; of many the first."""
    texts = list(dict.fromkeys(str(value) for value in values if value is not None))
    more = [f"and {len(texts) - _MOST_VALUES} more"] if len(texts) > _MOST_VALUES else []
    return ", ".join([*texts[:_MOST_VALUES], *more]) or "-"
