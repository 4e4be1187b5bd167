"""Pictures of the data files as SVG, with equal bytes for equal numbers."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from bitcycle.range_criteria import SHARE
from bitcycle_lab.published import read_table
from bitcycle_lab.report import plot
from bitcycle_lab.report.figures.style import COLORS, INK, new_figure, style_axes
from bitcycle_lab.study.number_text import POINTS
from bitcycle_lab.study.statistics import summarize_values
from bitcycle_lab.study.summary import GroupSummary, MethodSummary, summarize
from tools.results.study_data import Data, restore
from tools.results.tables import Options, choose, read_cells, short_names

PATH = re.compile(r'(?<= d=")[^"]*(?=")')
LONG = re.compile(r"-?\d+\.\d{3,}")
MARKS = "oDs^vPX*"


def draw(data: Data, kind: str, options: Options) -> str:
    """The SVG of a picture, whatever the user's settings of matplotlib."""
    known = {name: picture for (each, name), picture in PICTURES.items() if each == data["kind"]}
    choose([kind], list(known))
    choose(list(options), ["method", "columns"])
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"svg.hashsalt": "bitcycle", "svg.fonttype": "path"})
        return to_svg(known[kind](data, options))


def to_svg(figure: Figure) -> str:
    """A figure as SVG, without its date; a hundredth of a point is exact enough."""
    buffer = io.BytesIO()
    by = f"bitcycle, matplotlib {matplotlib.__version__}"
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": by})
    text = "\n".join(line.rstrip() for line in buffer.getvalue().decode().splitlines()) + "\n"
    return PATH.sub(
        lambda path: LONG.sub(lambda number: f"{round(float(number[0]), 2):g}", path[0]), text
    )


def look(number: int) -> dict[str, Any]:
    """Colour and marker of a method or network."""
    return {"color": COLORS[number % len(COLORS)], "marker": MARKS[number % len(MARKS)]}


def unit(metric: str) -> str:
    """Behind the name of a metric on an axis."""
    return POINTS.get(metric, "").replace(" ", ", ")


# -- differences to the baseline ------------------------------------------------------------------


def differences(data: Data, options: Options) -> Figure:
    """The differences to the baseline with their intervals, by group; a colour per method."""
    groups = summarize(restore(data))
    labels = list(dict.fromkeys(row.label for group in groups for row in group.compared))
    figure = new_figure(7.6, 4.2)
    axes: Axes = figure.subplots()
    _style_differences(axes, groups[0])
    names = short_names([group.group for group in groups])
    for number, place, row in _chosen(groups, options.get("method") or labels):
        _draw_difference(axes, place + 0.7 * ((number + 0.5) / len(labels) - 0.5), row, number)
    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-0.5, len(names) - 0.5)
    _put_legend(figure, [axes], min(4, len(labels)))
    return figure


def fit(data: Data, options: Options) -> Figure:
    """The differences to the baseline by its accuracy on training images; published ones beside.

    The data of `with` are other studies, of which groups without that accuracy are left out, or
    ends of runs, drawn by seed. N = 32 of another study is the method without it.
    """
    figure = new_figure(7.6, 4.6)
    axes, beside = figure.subplots(1, 2, sharey=True, width_ratios=(4, 1))
    base = summarize(restore(data))[0]
    methods = options.get("method") or [row.label for row in base.compared]
    choose(methods, [row.label for row in base.compared])
    for each in (data, *data["with"].values()):
        if each["kind"] == "end-of-run":
            _draw_seeds(axes, each, methods)
            continue
        where = _training_values(each, base)
        for row in (row for group in summarize(restore(each)) for row in group.compared):
            label = row.label.removesuffix(", N = 32")
            if label in methods and row.method.group in where:
                number = methods.index(label)
                x = where[row.method.group] + _aside(number, len(methods))
                _draw_difference(axes, x, row, number, label)
    for number, bits in enumerate(("3-8/8", "4-8/8")):
        gains = list(_published(bits))
        beside.plot([number] * len(gains), gains, color=INK, marker="x+"[number], markersize=9,
                    linestyle="none", label=f"CPT {bits}, published")  # fmt: skip
    _style_differences(axes, base, f"{base.metric} of {base.baseline} on training images, %")
    style_axes(beside, x="published", grid="y", size=10)
    beside.set_xlim(-0.7, 1.7)
    beside.set_xticks([])
    beside.axhline(0.0, color=INK, linewidth=1.2, linestyle="--")
    _put_legend(figure, [axes, beside], 3)
    return figure


def _draw_seeds(axes: Axes, data: Data, methods: Sequence[str]) -> None:
    """A hollow mark per seed, without an interval."""
    ends = {(run["method"], run["seed"]): run["variants"]["as trained"] for run in data["runs"]}
    for number, method in enumerate(methods):
        pairs = [(end, ends[data["baseline"], seed]) for (m, seed), end in ends.items()
                 if m == method]  # fmt: skip
        x = [base["train"]["accuracy"] + _aside(number, len(methods)) for _, base in pairs]
        y = [end["test"]["accuracy"] - base["test"]["accuracy"] for end, base in pairs]
        if pairs:
            axes.plot(x, y, markersize=7, linestyle="none", fillstyle="none",
                      label=f"{method}, pilot, one seed", **_method_look(number))  # fmt: skip


def _training_values(data: Data, base: GroupSummary) -> dict[str, float]:
    """The mean of the baseline's metric on training data, by group."""
    found: dict[str, float] = {}
    for entry in data["methods"]:
        values = [run["train"][base.metric] for run in entry["runs"] if "train" in run]
        if values and entry["label"] == base.baseline:
            found[entry["group"]] = fmean(values)
    return found


def _aside(number: int, count: int) -> float:
    """Methods stand side by side."""
    return 0.16 * (number - (count - 1) / 2)


def _chosen(
    groups: Sequence[GroupSummary], labels: Sequence[str]
) -> Iterator[tuple[int, int, MethodSummary]]:
    """The methods of these labels that have a difference: number of label and group, method."""
    choose(labels, [row.label for group in groups for row in group.compared])
    for place, group in enumerate(groups):
        for row in group.compared:
            if row.label in labels:
                yield labels.index(row.label), place, row


def _published(bits: str) -> Iterator[float]:
    """The difference to static 8/8 of each network on CIFAR-10 in CPT's table 2."""
    accuracy = {
        (row["model"], row["method"], row["precision_fw_bw"]): float(row["cifar10_accuracy"])
        for row in read_table("table2_cifar")
    }
    for model, method, own in accuracy:
        if (method, own) == ("cpt", bits):
            yield accuracy[model, "cpt", bits] - accuracy[model, "sbm", "8/8"]


def _style_differences(axes: Axes, group: GroupSummary, x: str = "") -> None:
    axes.axhline(0.0, color=INK, linewidth=1.2, linestyle="--")
    what = f"{group.metric} minus that of {group.baseline}{unit(group.metric)}\n(95 % interval)"
    style_axes(axes, x=x, y=what, grid="both" if x else "y", size=10)


def _draw_difference(
    axes: Axes, where: float, row: MethodSummary, number: int, label: str = ""
) -> None:
    """A difference with its interval; a single pair has none."""
    found = row.difference
    assert found is not None
    axes.errorbar(where, found.mean, yerr=found.half_width or 0.0, markersize=7, capsize=4,
                  elinewidth=1.6, linestyle="none", label=label or row.label,
                  **_method_look(number))  # fmt: skip


def _method_look(number: int) -> dict[str, Any]:
    """The first colour is that of the baseline, which is not drawn."""
    return {**look(number), "color": look(number + 1)["color"]}


def _put_legend(figure: Figure, panels: Sequence[Axes], num_columns: int) -> None:
    """Below the picture, each label once."""
    drawn: dict[str, Any] = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        drawn |= dict(zip(labels, handles, strict=True))
    figure.legend(drawn.values(), drawn.keys(), loc="outside lower center",
                  ncols=num_columns, frameon=False, fontsize=10)  # fmt: skip


# -- measurements ---------------------------------------------------------------------------------


def minutes(data: Data, options: Options) -> Figure:
    """Final values against the minutes of the steps on a processor: a line per method."""
    column = "minutes, AVX-512 VNNI"
    cells = read_cells(data, "minutes")
    metric = next(name for name in cells if not name.startswith("minutes") and name != "n")
    figure = new_figure(7.6, 4.2)
    axes: Axes = figure.subplots()
    rows: dict[str, list[str]] = {}
    for row in cells[metric]:
        rows.setdefault(row.rpartition(", ")[0], []).append(row)  # without the steps
    methods = options.get("method") or list(rows)
    choose(methods, list(rows))
    for number, method in enumerate(methods):
        found = [summarize_values(cells[metric][row]) for row in rows[method]]
        axes.errorbar(
            [fmean(cells[column][row]) for row in rows[method]], [each.mean for each in found],
            yerr=[each.half_width or 0.0 for each in found], markersize=7, capsize=4,
            elinewidth=1.6, linestyle="-", label=method, **look(number),
        )  # fmt: skip
    _set_log_scale(axes)
    style_axes(axes, x=column, y=f"{metric}{unit(metric)}\n(95 % interval)", size=10)
    axes.legend(frameon=False, fontsize=10)
    return figure


def ratios(data: Data, options: Options) -> Figure:
    """The ratios of a measurement: a line per network, a mark per column."""
    cells = read_cells(data, "ratios")
    columns = options.get("columns") or list(cells)
    choose(columns, list(cells))
    names = list(dict.fromkeys(row for column in columns for row in cells[column]))
    figure = new_figure(7.6, 0.36 * len(names) + 1.3)
    axes: Axes = figure.subplots()
    axes.axvline(1.0, color=INK, linewidth=1.2, linestyle="--")
    for number, column in enumerate(columns):
        x = [fmean(values) for values in cells[column].values()]
        axes.plot(x, [names.index(row) for row in cells[column]], markersize=8, linestyle="none",
                  label=column, **look(number))  # fmt: skip
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    style_axes(axes, x="time of a step, float32 = 1", grid="both", size=10)
    _put_legend(figure, [axes], 3)
    return figure


def shares(data: Data, options: Options) -> Figure:
    """The shares of range tests by bits, a line per network."""
    cells = read_cells(data, "ratios")
    figure = new_figure(7.6, 4.2)
    axes: Axes = figure.subplots()
    axes.axhline(SHARE, color=INK, linewidth=1.2, linestyle="--")
    for number, name in enumerate(cells.pop("n")):
        own = {int(column.split()[0]): rows[name] for column, rows in cells.items() if name in rows}
        axes.plot(sorted(own), [fmean(own[bits]) for bits in sorted(own)], label=name,
                  **look(number))  # fmt: skip
    style_axes(axes, x="bits, forward", y="share of the gain at the most bits", size=10)
    axes.legend(frameon=False, fontsize=10)
    return figure


def _set_log_scale(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())


PICTURES: Mapping[tuple[str, str], Callable[[Data, Options], Figure]] = {
    ("study", "result"): lambda data, _: plot(restore(data)),
    ("study", "differences"): differences,
    ("study", "minutes"): minutes,
    ("study", "fit"): fit,
    ("speed", "ratios"): ratios,
    ("range-tests", "shares"): shares,
}
