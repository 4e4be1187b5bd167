"""Pictures of studies as SVG, with equal bytes for equal numbers."""

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
from bitcycle_lab.cost.spec import BATCH_SIZE, NUM_SAMPLES, STEPS
from bitcycle_lab.published import read_table
from bitcycle_lab.report import plot
from bitcycle_lab.report.figures.style import COLORS, INK, new_figure, style_axes
from bitcycle_lab.study.number_text import POINTS
from bitcycle_lab.study.statistics import Difference, summarize_values
from bitcycle_lab.study.summary import summarize
from tools.results.study_data import Data, restore
from tools.results.tables import Options, read_cells

PATH = re.compile(r'(?<= d=")[^"]*(?=")')
LONG = re.compile(r"-?\d+\.\d{3,}")
MARKERS = "oDs^vPX*"
SBM = ("sbm", "8/8")  # the method and bits that CPT's tables compare with


def draw(data: Data, kind: str, options: Options) -> str:
    """The SVG of a picture, whatever the user's settings of matplotlib."""
    known = {name: picture for (each, name), picture in PICTURES.items() if each == data["kind"]}
    if kind not in known:
        raise ValueError(f"{data['kind']} has no picture {kind!r}; known: {', '.join(known)}")
    if unknown := sorted(set(options) - OPTIONS.get(kind, set())):
        raise ValueError(f"the picture {kind} has no option {unknown[0]!r}")
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"svg.hashsalt": "bitcycle", "svg.fonttype": "path"})
        return to_svg(known[kind](data, options))


def to_svg(figure: Figure) -> str:
    """A figure as SVG, without its date; a hundredth of a point is exact enough."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": creator()})
    text = "\n".join(line.rstrip() for line in buffer.getvalue().decode().splitlines()) + "\n"
    return PATH.sub(
        lambda path: LONG.sub(lambda number: f"{round(float(number[0]), 2):g}", path[0]), text
    )


def creator() -> str:
    """The drawing version, on which the bytes of a picture depend."""
    return f"bitcycle, matplotlib {matplotlib.__version__}"


# -- studies --------------------------------------------------------------------------------------


def differences(data: Data, options: Options) -> Figure:
    """The differences to the baseline with their intervals, by group; a colour per method."""
    groups = summarize(restore(data))
    chosen = options.get("method") or [row.label for group in groups for row in group.compared]
    labels, names = list(dict.fromkeys(chosen)), _short([group.group for group in groups])
    figure = new_figure(7.6, 4.2)
    axes: Axes = figure.subplots()
    axes.axhline(0.0, color=INK, linewidth=1.2, linestyle="--")
    for place, group in enumerate(groups):
        for row in group.compared:
            found = row.difference
            if found is None or row.label not in labels:
                continue
            number = labels.index(row.label)
            where = place + 0.7 * ((number + 0.5) / len(labels) - 0.5)
            _draw_difference(axes, where, found, number, row.label)
    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-0.5, len(names) - 0.5)
    metric = groups[0].metric
    what = f"{metric} minus that of {groups[0].baseline}{_unit(metric)}\n(95 % interval)"
    style_axes(axes, y=what, grid="y", size=10)
    figure.legend(*_once(axes, labels), loc="outside lower center",
                  ncols=min(4, len(labels)), frameon=False, fontsize=10)  # fmt: skip
    return figure


def _draw_difference(axes: Axes, where: float, found: Difference, number: int, label: str) -> None:
    """A difference with its interval; a single pair has none."""
    axes.errorbar(
        where, found.mean, yerr=found.half_width or 0.0,
        color=COLORS[(number + 1) % len(COLORS)], marker=MARKERS[number % len(MARKERS)],
        markersize=7, capsize=4, elinewidth=1.6, linestyle="none", label=label,
    )  # fmt: skip


def _unit(metric: str) -> str:
    return POINTS.get(metric, "").replace(" ", ", ")


def _once(axes: Axes, labels: Sequence[str] = ()) -> tuple[list[Any], list[str]]:
    """The entries of a legend without repetition; a label that was not drawn is a KeyError."""
    drawn = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    return [drawn[label] for label in labels or drawn], list(labels or drawn)


def _short(groups: Sequence[str]) -> list[str]:
    """The names of groups without the parts that all of them have.

    >>> _short(["ResNet-8, CIFAR-10, 500 steps", "ResNet-8, CIFAR-10, 2,000 steps"])
    ['500 steps', '2,000 steps']
    """
    parts = [group.split(", ") for group in groups]
    common = set.intersection(*map(set, parts))
    return [", ".join(p for p in own if p not in common) or ", ".join(own) for own in parts]


# -- time, passes over the data, measurements -----------------------------------------------------


def minutes(data: Data, options: Options) -> Figure:
    """Final values against the minutes of the steps on a processor: a line per method."""
    [column] = options.get("column", ["minutes, AVX-512 VNNI"])
    cells = read_cells(data, "minutes")
    metric = next(name for name in cells if not name.startswith("minutes") and name != "n")
    figure = new_figure(7.6, 4.2)
    axes: Axes = figure.subplots()
    rows: dict[str, list[str]] = {}
    for row in cells[metric]:
        rows.setdefault(row.rpartition(", ")[0], []).append(row)  # without the steps
    for number, method in enumerate(options.get("method") or rows):
        if method not in rows:
            raise ValueError(f"no method {method!r}; known: {', '.join(rows)}")
        x = [fmean(cells[column][row]) for row in rows[method]]
        _draw_means(axes, x, [cells[metric][row] for row in rows[method]], number, method, "-")
    _set_log_scale(axes)
    style_axes(axes, x=column, y=f"{metric}{_unit(metric)}\n(95 % interval)", size=10)
    axes.legend(frameon=False, fontsize=10)
    return figure


def passes(data: Data, options: Options) -> Figure:
    """The differences to the baseline by passes over the training images, ours and published."""
    figure = new_figure(7.6, 4.6)
    axes: Axes = figure.subplots()
    axes.axhline(0.0, color=INK, linewidth=1.2, linestyle="--")
    labels = options.get("method") or []
    drawn: dict[str, int] = {}
    for group in (g for each in (data, *data["with"].values()) for g in summarize(restore(each))):
        for row in group.compared:
            if row.difference is None or (labels and row.label not in labels):
                continue
            config = row.method.config
            size = config.data.subset or NUM_SAMPLES[config.data.name]
            where = (config.steps or 0) * config.data.batch_size / size
            number = drawn.setdefault(row.label, len(drawn))
            where *= 1 + 0.06 * (number - 2)  # side by side
            _draw_difference(axes, where, row.difference, number, row.label)
    for number, bits in enumerate(("3-8/8", "4-8/8")):
        points = list(_published(bits, 1 + 0.06 * number))
        axes.plot(*zip(*points, strict=True), color=INK, marker="x+"[number], markersize=9,
                  linestyle="none", label=f"CPT {bits}, published")  # fmt: skip
    _set_log_scale(axes)
    baseline, metric = data["baseline"], "accuracy"
    y = f"{metric} minus that of {baseline}{_unit(metric)}\n(95 % interval)"
    style_axes(axes, x="passes over the training images", y=y, size=10)
    figure.legend(*_once(axes), loc="outside lower center", ncols=3, frameon=False, fontsize=10)
    return figure


def _published(bits: str, aside: float) -> Iterator[tuple[float, float]]:
    """Passes and difference to static 8/8 of each network on CIFAR-10 in CPT's table 2."""
    rows = read_table("table2_cifar")
    base = {row["model"]: row for row in rows if (row["method"], row["precision_fw_bw"]) == SBM}
    for row in rows:
        if (row["method"], row["precision_fw_bw"]) == ("cpt", bits):
            column = "cifar10_accuracy"
            gain = float(row[column]) - float(base[row["model"]][column])
            yield STEPS * BATCH_SIZE / NUM_SAMPLES["cifar10"] * aside, gain


def ratios(data: Data, options: Options) -> Figure:
    """The ratios of a measurement: a line per network, a mark per column."""
    cells = read_cells(data, "ratios", options.get("column", ()))
    names = list(dict.fromkeys(row for column in cells.values() for row in column))
    figure = new_figure(7.6, 0.36 * len(names) + 1.3)
    axes: Axes = figure.subplots()
    axes.axvline(1.0, color=INK, linewidth=1.2, linestyle="--")
    for number, (column, rows) in enumerate(cells.items()):
        axes.plot([fmean(values) for values in rows.values()], [names.index(row) for row in rows],
                  color=COLORS[number % len(COLORS)], marker=MARKERS[number % len(MARKERS)],
                  markersize=8, linestyle="none", label=column)  # fmt: skip
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    style_axes(axes, x="time of a step, float32 = 1", grid="both", size=10)
    figure.legend(*_once(axes), loc="outside lower center", ncols=3, frameon=False, fontsize=10)
    return figure


def shares(data: Data, options: Options) -> Figure:
    """The shares of range tests by bits, a line per network."""
    cells = read_cells(data, "ratios")
    del cells["n"]
    figure = new_figure(7.6, 4.2)
    axes: Axes = figure.subplots()
    axes.axhline(SHARE, color=INK, linewidth=1.2, linestyle="--")
    for number, name in enumerate(dict.fromkeys(row for rows in cells.values() for row in rows)):
        own = {int(column.split()[0]): rows[name] for column, rows in cells.items() if name in rows}
        look: dict[str, Any] = {"color": COLORS[number % len(COLORS)]}
        axes.plot(list(own), [fmean(values) for values in own.values()], label=name,
                  marker=MARKERS[number % len(MARKERS)], **look)  # fmt: skip
    style_axes(axes, x="bits, forward", y="share of the gain at the most bits", size=10)
    axes.legend(frameon=False, fontsize=10)
    return figure


def _set_log_scale(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())


def _draw_means(
    axes: Axes, x: Sequence[float], y: Sequence[Sequence[float]], number: int, label: str, line: str
) -> None:
    """Means with their intervals; a single value has none."""
    found = [summarize_values(values) for values in y]
    axes.errorbar(
        x, [each.mean for each in found], yerr=[each.half_width or 0.0 for each in found],
        color=COLORS[number % len(COLORS)], marker=MARKERS[number % len(MARKERS)], markersize=7,
        capsize=4, elinewidth=1.6, linestyle=line, label=label,
    )  # fmt: skip


PICTURES: Mapping[tuple[str, str], Callable[[Data, Options], Figure]] = {
    ("study", "result"): lambda data, _: plot(restore(data)),
    ("study", "differences"): differences,
    ("study", "minutes"): minutes,
    ("study", "passes"): passes,
    ("speed", "ratios"): ratios,
    ("range-tests", "shares"): shares,
}
OPTIONS = {  # of pictures
    "differences": {"method"},
    "minutes": {"method", "column"},
    "passes": {"method"},
    "ratios": {"column"},
}
