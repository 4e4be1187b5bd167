"""Pictures of studies as SVG, with equal bytes for equal numbers."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bitcycle.bits import Bits
from bitcycle.schedules import parse_schedule
from bitcycle_lab.report import plot
from bitcycle_lab.report.figures.style import COLORS, INK, new_figure, style_axes
from bitcycle_lab.study.number_text import POINTS
from bitcycle_lab.study.statistics import summarize_values
from bitcycle_lab.study.summary import summarize
from tools.results.study_data import Data, restore
from tools.results.tables import Options

PATH = re.compile(r'(?<= d=")[^"]*(?=")')
LONG = re.compile(r"-?\d+\.\d{3,}")
MARKERS = "oDs^vPX*"
FRONT = ("static 8/8", "CPT 3-8/8")  # methods of the README's picture


def draw(data: Data, kind: str, options: Options) -> str:
    """The SVG of a picture, whatever the user's settings of matplotlib."""
    if kind not in PICTURES:
        raise ValueError(f"there is no picture {kind!r}; known: {', '.join(PICTURES)}")
    if data["kind"] != "study":
        raise ValueError(f"only studies have pictures, not {data['kind']}")
    known = {"method"} if kind == "differences" else set()
    if unknown := sorted(set(options) - known):
        raise ValueError(f"the picture {kind} has no option {unknown[0]!r}")
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"svg.hashsalt": "bitcycle", "svg.fonttype": "path"})
        return to_svg(PICTURES[kind](data, options))


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
            bar = None
            if found.low is not None and found.high is not None:
                bar = [[found.mean - found.low], [found.high - found.mean]]
            axes.errorbar(
                place + 0.7 * ((number + 0.5) / len(labels) - 0.5), found.mean, yerr=bar,
                color=COLORS[(number + 1) % len(COLORS)], marker=MARKERS[number % len(MARKERS)],
                markersize=7, capsize=4, elinewidth=1.6, linestyle="none", label=row.label,
            )  # fmt: skip
    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-0.5, len(names) - 0.5)
    metric = groups[0].metric
    unit = POINTS.get(metric, "").replace(" ", ", ")
    what = f"{metric} minus that of {groups[0].baseline}{unit}\n(95 % interval)"
    style_axes(axes, y=what, grid="y", size=10)
    drawn = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(
        [drawn[label] for label in labels], labels, loc="outside lower center",
        ncols=min(4, len(labels)), frameon=False, fontsize=10,
    )  # fmt: skip
    return figure


def _short(groups: Sequence[str]) -> list[str]:
    """The names of groups without the parts that all of them have.

    >>> _short(["ResNet-8, CIFAR-10, 500 steps", "ResNet-8, CIFAR-10, 2,000 steps"])
    ['500 steps', '2,000 steps']
    """
    parts = [group.split(", ") for group in groups]
    common = set.intersection(*map(set, parts))
    return [", ".join(p for p in own if p not in common) or ", ".join(own) for own in parts]


# -- the README's picture -------------------------------------------------------------------------


def front(data: Data, options: Options) -> Figure:
    """The bits of every step and the test accuracy of two methods, with their training cost."""
    entries = {entry["label"]: entry for entry in data["methods"]}
    costs = {label: fmean(run["bitops"] for run in _done(entries[label])) for label in FRONT}
    figure = Figure(figsize=(9.0, 4.8))  # a solved layout of shared axes varies in last digits
    figure.subplots_adjust(left=0.105, right=0.98, bottom=0.13, top=0.89, hspace=0.13)
    top, low = figure.subplots(2, sharex=True, height_ratios=[1.0, 1.5])
    for label, color in zip(FRONT, COLORS, strict=False):
        schedule = parse_schedule(entries[label]["settings"]["precision"]["forward"])
        steps = _done(entries[label])[0]["steps"]
        bits = [Bits.of(each).cost_bits for each in schedule.values(steps)]
        share = 100 * costs[label] / costs[FRONT[0]]
        look = {"color": color, "linewidth": 2.4, "label": f"{label}: {share:.0f} % of the BitOPs"}
        top.step(range(steps + 1), [*bits, bits[-1]], where="post", **look)
        low.set_xlim(0, steps)
        n = _draw_curve(low, [dict(run["curve"]) for run in _done(entries[label])], look)
    for axes, title in {top: "bits, forward", low: f"test accuracy, %\n(n = {n}, 95 %)"}.items():
        style_axes(axes, y=title, size=12)
        axes.yaxis.label.set_size(13)
    low.set_xlabel("training step", color=INK, fontsize=13)
    figure.align_ylabels()
    handles = top.get_legend_handles_labels()
    figure.legend(*handles, loc="upper center", ncols=2, frameon=False, fontsize=14)
    return figure


def _done(entry: Data) -> list[Data]:
    return [run for run in entry["runs"] if run["state"] == "done"]


def _draw_curve(axes: Axes, curves: Sequence[Mapping[int, float]], look: Data) -> int:
    """The mean over runs with its interval, at the steps of the first; returns their number."""
    steps = list(curves[0])
    found = [summarize_values([float(curve[step]) for curve in curves]) for step in steps]
    axes.plot(steps, [each.mean for each in found], marker="o", markersize=5, **look)
    lows = [each.mean if each.low is None else each.low for each in found]
    highs = [each.mean if each.high is None else each.high for each in found]
    axes.fill_between(steps, lows, highs, color=look["color"], alpha=0.18, linewidth=0)
    return len(curves)


PICTURES: Mapping[str, Callable[[Data, Options], Figure]] = {
    "result": lambda data, _: plot(restore(data)),
    "differences": differences,
    "front": front,
}
