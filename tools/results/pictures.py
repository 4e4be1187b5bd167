"""Pictures of the data files as SVG, with equal bytes for equal numbers."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bitcycle.analysis.numbers import POINTS
from bitcycle.analysis.statistics import summarize_values
from bitcycle.analysis.training_spec import spec_from_config
from bitcycle.cost.meter import CostMeter
from bitcycle.precision import cost_bits
from bitcycle.report import plot
from bitcycle.report.figures.style import COLORS, INK, new_figure, style_axes
from bitcycle.scheduler import PrecisionScheduler
from bitcycle.schedules import parse_schedule
from bitcycle.study.summary import summarize
from bitcycle.train.config_file import from_dict
from tools.results.study_data import Data, curves_of, restore
from tools.results.tables import BASE, FLOAT, Options, ratios_of

PATH = re.compile(r'(?<= d=")[^"]*(?=")')
LONG = re.compile(r"-?\d+\.\d{3,}")
MARKERS = "oDs^vPX*"
FRONT = {"static 8/8": COLORS[0], "CPT 3-8/8": COLORS[1]}  # methods of the README's picture
HIGHEST = 12  # ratio that is drawn: the BitOPs of float32 are 16 times those of 8 bits


def draw(data: Data, kind: str, options: Options) -> str:
    """The SVG of a picture, whatever the user's settings of matplotlib."""
    if kind not in PICTURES:
        raise ValueError(f"there is no picture {kind!r}; known: {', '.join(PICTURES)}")
    if unknown := sorted(set(options) - {"method", "column"}):
        raise ValueError(f"a picture has no option {unknown[0]!r}; known: method, column")
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


# -- measurements ---------------------------------------------------------------------------------


def ratios(data: Data, options: Options) -> Figure:
    """The ratios of a measurement; those far above the others are not drawn."""
    series = {
        column: {row: ratio.mean for row, ratio in own.items() if ratio.mean < HIGHEST}
        for column, own in ratios_of(data, options.get("column", ())).items()
    }
    return bars(series, f"{BASE if data['kind'] == 'run-times' else FLOAT} = 1 (left: less)")


def bars(series: Mapping[str, Mapping[str, float]], title: str) -> Figure:
    """Ratios to 1 as groups of horizontal bars that begin there, on a logarithmic axis."""
    groups = list(dict.fromkeys(group for own in series.values() for group in own))
    size = len(series) + 1
    figure = new_figure(8.4, 0.165 * len(groups) * size + 1.3)
    axes: Axes = figure.subplots()
    axes.set_xscale("log")
    for place, (name, own) in enumerate(series.items()):
        at = {group: groups.index(group) * size + place for group in own}
        axes.barh(
            [at[group] for group in own], [value - 1 for value in own.values()], left=1.0,
            height=0.85, label=name, color=COLORS[place % len(COLORS)],
        )  # fmt: skip
        for group, value in own.items():
            side = -1 if value < 1 else 1
            axes.annotate(
                f"{value:.2f}", (value, at[group]), xytext=(3 * side, 0), va="center",
                textcoords="offset points", ha="right" if value < 1 else "left", fontsize=8,
                color=INK,
            )  # fmt: skip
    axes.axvline(1.0, color=INK, linewidth=1.0)
    style_axes(axes, x=title, grid="x", size=10)
    axes.set_yticks([k * size + (size - 2) / 2 for k in range(len(groups))], groups)
    axes.set_ylim(len(groups) * size - 1, -1)
    found = [value for own in series.values() for value in own.values()]
    low, high = min(found) / 1.25, max(found) * 1.25
    ticks = [tick for tick in (0.25, 0.5, 0.75, 1, 1.5, 2, 4, 8, 16) if low < tick < high]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlim(low, high)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=10)
    return figure


# -- the README's picture -------------------------------------------------------------------------


def front(data: Data, options: Options) -> Figure:
    """Bits, test accuracy and training cost so far over the run, over common seeds."""
    entries = {m["label"]: m for m in data["methods"] if m["label"] in FRONT}
    curves = {label: curves_of(entries[label]) for label in FRONT}
    seeds = sorted(set.intersection(*(set(own) for own in curves.values())))
    paths = {label: bits_and_cost(entries[label]) for label in FRONT}
    total = paths[next(iter(FRONT))][1][-1]
    figure = Figure(figsize=(9.0, 6.2))  # a solved layout of shared axes varies in last digits
    figure.subplots_adjust(left=0.105, right=0.925, bottom=0.1, top=0.92, hspace=0.13)
    top, middle, low = figure.subplots(3, sharex=True, height_ratios=[1.0, 1.5, 1.2])
    for label, color in FRONT.items():
        bits, costs = paths[label]
        look: dict[str, Any] = {"color": color, "linewidth": 2.4, "label": label}
        steps = range(len(bits) + 1)
        top.step(steps, [*bits, bits[-1]], where="post", **look)
        _draw_curve(middle, [curves[label][seed] for seed in seeds], look)
        share = [100 * cost / total for cost in costs]
        low.plot(steps, [0.0, *share], **look)
        low.annotate(
            f"{share[-1]:.0f} %", (len(share), share[-1]), xytext=(6, 0), va="center",
            textcoords="offset points", fontsize=13, color=color, annotation_clip=False,
        )  # fmt: skip
    accuracy = f"test accuracy, %\n(n = {len(seeds)}, 95 %)"
    titles = {top: "bits, forward", middle: accuracy, low: "BitOPs so far,\n% of static"}
    for axes, title in titles.items():
        style_axes(axes, y=title, size=12)
        axes.yaxis.label.set_size(13)
    widths = [width for bits, _ in paths.values() for width in bits]
    top.set_yticks([min(widths), max(widths)])
    low.set_xlim(0, len(bits))
    low.set_ylim(0, 105)
    low.set_xlabel("training step", color=INK, fontsize=13)
    figure.align_ylabels()
    figure.legend(
        *top.get_legend_handles_labels(), loc="upper center", ncols=len(FRONT), frameon=False,
        fontsize=14,
    )  # fmt: skip
    return figure


def _draw_curve(axes: Axes, curves: Sequence[Mapping[int, float]], look: Data) -> None:
    """The mean and its interval at the steps where every run has a finite value."""
    steps = [
        step
        for step in sorted(set.intersection(*map(set, curves)))
        if all(math.isfinite(curve[step]) for curve in curves)
    ]
    found = [summarize_values([curve[step] for curve in curves]) for step in steps]
    axes.plot(steps, [each.mean for each in found], marker="o", markersize=5, **look)
    lows = [each.mean if each.low is None else each.low for each in found]
    highs = [each.mean if each.high is None else each.high for each in found]
    axes.fill_between(steps, lows, highs, color=look["color"], alpha=0.18, linewidth=0)


def bits_and_cost(method: Data) -> tuple[list[int], list[float]]:
    """The forward bits of every step, and the run's BitOPs so far at its end.

    The steps share the run's BitOPs as their bits say; the last batch of an epoch, which is
    smaller, counts as the others.
    """
    spec = spec_from_config(from_dict(method["settings"]).with_backward())
    model = spec.build()
    texts: dict[str, Any] = spec.precision.schedule_texts(auto=1)
    scheduler = PrecisionScheduler(model, **texts, total_steps=spec.total_steps)
    meter = CostMeter(model, spec.inputs(model, spec.batch_size))
    costs = []
    for _ in range(spec.total_steps):
        meter.step()
        costs.append(meter.bitops)
        scheduler.step()
    bits = parse_schedule(texts["forward"]).values(spec.total_steps)
    total = fmean(run["bitops"] for run in method["runs"] if run["state"] == "done")
    return [cost_bits(each) for each in bits], [total * (cost / costs[-1]) for cost in costs]


PICTURES: Mapping[str, Callable[[Data, Options], Figure]] = {
    "result": lambda data, _: plot(restore(data)),
    "differences": differences,
    "front": front,
    "ratios": ratios,
}
