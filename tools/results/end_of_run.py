"""The page of the ends of cyclic runs: what their last weights fit, and what another end changes.

The data file has every value by seed, from `benchmarks/end_of_run.py --json`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from bitcycle.analysis.numbers import POINTS, decimals_for, difference_text, fixed
from bitcycle.analysis.statistics import Difference, holm, paired_difference, summarize_values
from bitcycle.report.figures.style import COLORS, format_steps, padded, style_axes
from bitcycle.tables import escape_markdown
from tools.results import page
from tools.results.commands import gather_files_command
from tools.results.page import Data, Page
from tools.results.pictures import draw_curve
from tools.results.sentences import MOST_WORDS, side_text
from tools.results.study_page import value_text

AS_TRAINED = "as trained"  # the first variant of a run
METRIC, SPLITS = "accuracy", ("test", "train", "augmented")
UNIT = POINTS[METRIC]
STEPS = 8_000  # the default of the benchmark
ABOUT = ("group", "steps", "baseline", "num_batches")

Row = tuple[str, str]  # method, variant
Values = dict[Row, dict[int, float]]  # by row and seed


def gather_end_of_run(files: Sequence[Data]) -> dict[str, Any]:
    """The data of files that `benchmarks/end_of_run.py --json` wrote, a part of the data each."""
    kept = ("method", "seed", "curve", "variants")
    found = [
        {
            "kind": "end-of-run",
            **{key: file[key] for key in ABOUT},
            "parts": [
                {
                    **page.recorded_machine_and_time(file),
                    "control": file["control"],
                    "runs": [{key: _rounded(run[key]) for key in kept} for run in file["runs"]],
                }
            ],
        }
        for file in files
    ]
    return reduce(merge_end_of_run, found)


def merge_end_of_run(old: Data, new: Data) -> dict[str, Any]:
    """Old and new parts, without the old runs of a method and seed that a new part has."""
    for key in ABOUT:
        if old[key] != new[key]:
            raise ValueError(
                f"runs whose {key} is {old[key]} and {new[key]} do not go on one page; gather them "
                "into two folders"
            )
    again = {_identity(run) for run in runs_of(new)}
    parts = []
    for part in old["parts"]:
        runs = [run for run in part["runs"] if _identity(run) not in again]
        control = part["control"]
        is_kept = control is not None and _identity(control) not in again
        parts += [{**part, "control": control if is_kept else None, "runs": runs}] if runs else []
    return {**new, "parts": parts + list(new["parts"])}


def runs_of(data: Data) -> list[Data]:
    """The runs of all parts."""
    return [run for part in data["parts"] for run in part["runs"]]


def _identity(run: Data) -> tuple[str, int]:
    return run["method"], run["seed"]


def _rounded(value: Any) -> Any:
    """Six digits of every number in lists and dicts."""
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return page.rounded(value, 6) if isinstance(value, float) else value


# -- values by row and seed -----------------------------------------------------------------------


def is_cyclic(method: str) -> bool:
    """Whether this is the name of a cyclic method."""
    return method.startswith("CPT")


def values_of(data: Data, split: str, metric: str = METRIC) -> Values:
    """The values of a split; the baseline first, then the cyclic methods."""
    rows: Values = {}
    for run in runs_of(data):
        for variant, metrics in run["variants"].items():
            row = rows.setdefault((run["method"], variant), {})
            row[run["seed"]] = float(metrics[split][metric])

    def order(row: Row) -> tuple[bool, bool]:
        return row[0] != data["baseline"], not is_cyclic(row[0])

    return {row: rows[row] for row in sorted(rows, key=order)}


def gaps_of(data: Data) -> Values:
    """Training minus test accuracy."""
    test, train = (values_of(data, split) for split in ("test", "train"))
    return {row: {seed: own[seed] - test[row][seed] for seed in own} for row, own in train.items()}


def effects_of(test: Values, method: str) -> dict[str, Difference]:
    """Test accuracy of each variant minus that of the same run as trained."""
    found = {
        variant: paired_difference(own, test[method, AS_TRAINED])
        for (name, variant), own in test.items()
        if name == method and variant != AS_TRAINED
    }
    return {variant: each for variant, each in found.items() if each is not None}


def name_of(row: Row) -> str:
    """A row of the tables.

    >>> name_of(("static 8/8", "as trained")), name_of(("static 8/8", "new batch norm"))
    ('static 8/8', 'static 8/8, new batch norm')
    """
    return row[0] if row[1] == AS_TRAINED else ", ".join(row)


# -- the page -------------------------------------------------------------------------------------


def end_of_run_page(data: Data) -> Page:
    """The page: a row per method, and per variant of the cyclic ones and of the baseline."""
    base = (data["baseline"], AS_TRAINED)
    test, train, gaps = values_of(data, "test"), values_of(data, "train"), gaps_of(data)
    rows, drawn = [], accuracy_by_step(data)
    for row, own in test.items():
        if row[0] != base[0] and not is_cyclic(row[0]) and row[1] != AS_TRAINED:
            continue  # in the details
        against = None if row == base else paired_difference(own, test.get(base, {}))
        tested, gap = (value_text(summarize_values(each[row].values())) for each in (test, gaps))
        fitted, compared = fixed(fmean(train[row].values()), 2), difference_text(against)
        rows.append([name_of(row), tested, fitted, gap, compared if against else "", str(len(own))])
    return Page(
        name="end-of-run",
        title=f"Why cyclic precision ends where it does: {data['group']}",
        answer=_answer(data),
        picture=None if drawn is None else ("Test accuracy at the end of every cycle", drawn),
        table=page.table(
            ["variant", "test accuracy (95 % interval)", "training", "gap (95 % interval)",
             f"difference to {base[0]} (95 % interval)", "n"],
            rows,
        ),
        columns="The last weights at the highest bits of the run. Training: accuracy on the "
        "training images without augmentation. Gap: training minus test accuracy. Differences of "
        "test accuracy are paired by seed, over the seeds that both have. New batch norm: "
        f"statistics from {data['num_batches']} augmented training batches; and ranges: "
        "activation ranges from these too. 8 bits in the last cycles: trained from the checkpoint "
        "of the run where they begin, with its learning rate, its batches and its optimizer state.",
        commands=[
            "bitcycle study run lengths --output RUNS --data.root DATA",
            "python benchmarks/end_of_run.py RUNS --data.root DATA --json end-of-run.json"
            + ("" if data["steps"] == STEPS else f" --steps {data['steps']}"),
            gather_files_command("end-of-run.json"),
        ],
        details=_details(data),
    )  # fmt: skip


def _answer(data: Data) -> str:
    """How the cyclic runs end against the baseline, and which other ends of one change it."""
    test, train = values_of(data, "test"), values_of(data, "train")
    base = (data["baseline"], AS_TRAINED)
    cyclic = [row for row in test if is_cyclic(row[0]) and row[1] == AS_TRAINED]
    own = max(cyclic, key=lambda row: len(effects_of(test, row[0])), default=base)
    apart = {row: paired_difference(test[row], test.get(base, {})) for row in cyclic}
    on_test, on_train = apart.get(own), paired_difference(train.get(own, {}), train.get(base, {}))
    if on_test is None or on_train is None:
        return "No seed has a cyclic and a static run yet."
    known = {row: each for row, each in apart.items() if each is not None}
    kept = dict(zip(known, holm([_p(each) for each in known.values()]), strict=True))
    what = f" {base[0]} on test images"
    first = side_text(on_test, UNIT, what, is_first=True, stays=kept[own])
    said = f"After {data['steps']:,} steps {_short(own)} ended {first}"
    said += f" and {side_text(on_train, UNIT, ' on training images')}"
    if on_test.n < 2:
        return f"{said}."
    effects = effects_of(test, own[0])
    beyond = holm([_p(each) for each in effects.values()])
    changes = [
        f"{variant} {'added' if each.mean > 0 else 'cost'} {_points(each)}"
        for (variant, each), is_beyond in zip(effects.items(), beyond, strict=True)
        if is_beyond
    ]
    which = "further" if changes else "other"
    rest = [] if all(beyond) else [f"no {which} end mattered beyond noise"]
    others = [
        f"{_short(row)} ended {side_text(each, UNIT, stays=kept[row])}"
        for row, each in known.items()
        if row != own
    ]
    ends = ([*changes, *rest, *others], [*changes, *rest], changes)
    texts = [f"{'; '.join([said, *parts])}." for parts in ends]
    return next((text for text in texts if len(text.split()) <= MOST_WORDS), texts[-1])


def _p(difference: Difference) -> float:
    return 1.0 if difference.p is None else difference.p


def _short(row: Row) -> str:
    return row[0].partition(", ")[0]


def _points(difference: Difference) -> str:
    low, high = difference.low, difference.high
    half = None if low is None or high is None else (high - low) / 2
    return f"{fixed(abs(difference.mean), decimals_for(half))}{UNIT}"


def _details(data: Data) -> list[str]:
    """Losses, what a variant changes of its own run, the gap, the control and the machine."""
    test, gaps, augmented = values_of(data, "test"), gaps_of(data), values_of(data, "augmented")
    losses = [values_of(data, split, "loss") for split in SPLITS]
    rows = []
    for row, own in augmented.items():
        effect = effects_of(test, row[0]).get(row[1])
        numbers = [fixed(fmean(loss[row].values()), 4) for loss in losses]
        numbers.append(fixed(fmean(own.values()), 2))
        rows.append([name_of(row), *numbers, "" if effect is None else difference_text(effect)])
    names = ["variant", "test loss", "training loss", "augmented loss", "augmented accuracy",
             "test accuracy minus that as trained (95 % interval)"]  # fmt: skip
    said = []
    for row in gaps:
        gap = paired_difference(gaps[row], gaps.get((data["baseline"], AS_TRAINED), {}))
        if is_cyclic(row[0]) and row[1] == AS_TRAINED and gap is not None:
            said.append(f"The gap of {row[0]} minus that of {data['baseline']} is "
                        f"{difference_text(gap)} points, n = {gap.n}.")  # fmt: skip
    for control in filter(None, (part["control"] for part in data["parts"])):
        said.append(f"Control: the last cycle of {control['method']}, seed {control['seed']}, "
                    "trained again from its checkpoint ends with the same weights and a test "
                    f"accuracy of {control['again']:.2f}; the run's is {control['run']:.2f}."
                    )  # fmt: skip
    said.append(f"Augmented: the {data['num_batches']} training batches after the last one of the "
                "run, the same in all rows of a seed; a part of the images, so compare rows, not "
                "columns. The first sentence corrects for its number of variants (Holm). "
                f"{page.machine_and_time(data['parts'])}")  # fmt: skip
    return [page.table(names, rows), escape_markdown(" ".join(said))]


# -- the picture ----------------------------------------------------------------------------------


def accuracy_by_step(data: Data) -> str | None:
    """Test accuracy of cyclic and static runs: the run, and its second half.

    A cyclic method has the seeds that the baseline has too. None without such a seed.
    """
    curves: dict[str, dict[int, dict[int, float]]] = {}
    for run in sorted(runs_of(data), key=lambda run: is_cyclic(run["method"])):
        if run["method"] == data["baseline"] or is_cyclic(run["method"]):
            own = {step: float(value) for step, value in run["curve"]}
            curves.setdefault(run["method"], {})[run["seed"]] = own
    base = curves.pop(data["baseline"], {})
    paired = {
        label: {seed: own[seed] for seed in sorted(own.keys() & base.keys())}
        for label, own in curves.items()
    }
    curves = {label: own for label, own in paired.items() if own}
    if not curves:
        return None
    curves = {data["baseline"]: base, **curves}
    with page.default_style():
        figure = Figure(figsize=(9.0, 4.2))  # a solved layout varies in last digits
        figure.subplots_adjust(left=0.08, right=0.97, bottom=0.13, top=0.89, wspace=0.16)
        whole, later = figure.subplots(1, 2)
        for number, (label, by_seed) in enumerate(curves.items()):
            found = [by_seed[seed] for seed in sorted(by_seed)]
            late = [_second_half(each, data["steps"]) for each in found]
            name = f"{label} (n = {len(found)})"
            look = {"color": COLORS[number], "linewidth": 2.0, "label": name}
            draw_curve(whole, found, look)
            draw_curve(later, late, look)
        title = f"test {METRIC}, % (95 % interval)"
        style_axes(whole, x="training step", y=title, size=10)
        style_axes(later, x="training step, second half", size=10)
        format_steps(whole)
        format_steps(later)
        shown = [curve for by_seed in curves.values() for curve in by_seed.values()]
        late = [_second_half(curve, data["steps"]) for curve in shown]
        for axes, found in ((whole, shown), (later, late)):  # not the wide intervals of two seeds
            axes.set_ylim(*padded(value for curve in found for value in curve.values()))
        drawn = whole.get_legend_handles_labels()
        figure.legend(*drawn, loc="upper center", ncols=len(curves), frameon=False, fontsize=11)
        return page.svg(figure)


def _second_half(curve: dict[int, float], steps: int) -> dict[int, float]:
    return {step: value for step, value in curve.items() if 2 * step > steps}
