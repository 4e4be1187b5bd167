"""Pictures that only this repository needs; all others are `bitcycle.report.plot`'s."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bitcycle.analysis.numbers import POINTS
from bitcycle.analysis.statistics import summarize_values
from bitcycle.analysis.training_spec import spec_from_config
from bitcycle.cost.meter import CostMeter
from bitcycle.precision import cost_bits
from bitcycle.report.figures.style import (
    COLORS,
    DASHED,
    INK,
    Style,
    format_steps,
    new_figure,
    style_axes,
)
from bitcycle.scheduler import PrecisionScheduler
from bitcycle.schedules import parse_schedule
from tools.results.comparison import CyclicComparison
from tools.results.page import Data, default_style, svg
from tools.results.study_data import Curves, curves_of, from_settings

FRONT = {"static 8/8": COLORS[0], "CPT 3-8/8": COLORS[1]}  # methods of the README's picture
FRONT_STUDY = "digits"


def bars(groups: Sequence[str], series: Mapping[str, Sequence[float | None]], title: str) -> str:
    """Ratios to 1 as groups of horizontal bars that begin there, on a logarithmic axis.

    None is a bar that was not measured.
    """
    with default_style():
        size = len(series) + 1
        figure = new_figure(8.4, 0.165 * len(groups) * size + 1.3)
        axes: Axes = figure.subplots()
        axes.set_xscale("log")
        for place, (name, values) in enumerate(series.items()):
            known = [(k * size + place, v) for k, v in enumerate(values) if v is not None]
            at, sizes = [y for y, _ in known], [value - 1 for _, value in known]
            color = COLORS[place % len(COLORS)]
            axes.barh(at, sizes, left=1.0, height=0.85, label=name, color=color)
            for y, value in known:
                is_left = value < 1
                axes.annotate(
                    f"{value:.2f}", (value, y),
                    xytext=(-3 if is_left else 3, 0), textcoords="offset points", va="center",
                    ha="right" if is_left else "left", fontsize=8, color=INK,
                )  # fmt: skip
        axes.axvline(1.0, color=INK, linewidth=1.0)
        style_axes(axes, x=title, grid="x", size=10)
        axes.set_yticks([k * size + (size - 2) / 2 for k in range(len(groups))], groups)
        axes.set_ylim(len(groups) * size - 1, -1)
        found = [value for values in series.values() for value in values if value is not None]
        ticks = [
            t
            for t in (0.25, 0.5, 0.75, 1, 1.5, 2, 4, 8, 16)
            if min(found) / 1.3 < t < 1.3 * max(found)
        ]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_xlim(min(found) / 1.25, max(found) * 1.25)
        figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=10)
        return svg(figure)


def differences(comparisons: Sequence[CyclicComparison], cases: Sequence[str]) -> str:
    """The differences with their intervals, against the case of each; a colour per method."""
    names, labels = (
        list(dict.fromkeys(own)) for own in (cases, [e.cyclic.label for e in comparisons])
    )
    with default_style():
        figure = new_figure(7.6, 4.0)
        axes: Axes = figure.subplots()
        axes.axhline(0.0, color=INK, linewidth=1.2, linestyle=DASHED)
        for each, case in zip(comparisons, cases, strict=True):
            number, found = labels.index(each.cyclic.label), each.difference
            bar = None
            if found.low is not None and found.high is not None:
                bar = [[found.mean - found.low], [found.high - found.mean]]
            axes.errorbar(
                names.index(case) + 0.16 * (number - (len(labels) - 1) / 2), found.mean, yerr=bar,
                color=Style(number + 1).color, marker=Style(number + 1).marker[0], markersize=7,
                capsize=5, elinewidth=1.6, linestyle="none",
                label=each.cyclic.label if case == names[0] else None,
            )  # fmt: skip
        axes.set_xticks(range(len(names)), names)
        axes.set_xlim(-0.5, len(names) - 0.5)
        first = comparisons[0]
        unit = POINTS.get(first.group.metric, "").replace(" ", ", ")
        n = _range([each.difference.n for each in comparisons])
        what = f"{first.group.metric} minus that of\n{first.static.label}{unit}"
        style_axes(axes, y=f"{what} (95 % interval, n = {n})", grid="y", size=10)
        figure.legend(loc="outside lower center", ncols=len(labels), frameon=False, fontsize=10)
        return svg(figure)


def differences_by_length(
    comparisons: Sequence[CyclicComparison], published: tuple[int, float, str] | None
) -> str:
    """The differences with their intervals against the number of steps, a line per method.

    published: (steps, difference, label) of a point without an interval.
    """
    methods: dict[str, list[CyclicComparison]] = {}
    for each in comparisons:
        methods.setdefault(f"{each.cyclic.label} minus {each.static.label}", []).append(each)
    with default_style():
        figure = new_figure(7.6, 4.4)
        axes: Axes = figure.subplots()
        axes.set_xscale("log")
        axes.axhline(0.0, color=INK, linewidth=1.2, linestyle=DASHED)
        for number, (label, found) in enumerate(methods.items()):
            style, shift = Style(number + 1), 1.06 ** (number - (len(methods) - 1) / 2)
            means = [each.difference.mean for each in found]
            around = [
                [math.nan if end is None else abs(end - each.difference.mean) for each in found
                 for end in [getattr(each.difference, side)]]
                for side in ("low", "high")
            ]  # fmt: skip
            axes.errorbar(
                [shift * (each.cyclic.method.config.steps or 1) for each in found], means,
                yerr=around, color=style.color, marker=style.marker[0], markersize=7, capsize=5,
                elinewidth=1.6, linewidth=1.2, linestyle="-" if len(found) > 1 else "none",
                label=f"{label}, n = {_range([each.difference.n for each in found])}",
            )  # fmt: skip
        steps = sorted({each.cyclic.method.config.steps or 1 for each in comparisons})
        if published is not None:
            length, value, label = published
            axes.plot([length], [value], marker="*", markersize=14, linestyle="none",
                      markerfacecolor="none", color=INK, label=label)  # fmt: skip
            steps.append(length)
        axes.set_xticks(steps, [f"{number:,}" for number in steps])
        axes.minorticks_off()
        metric = comparisons[0].group.metric
        unit = POINTS.get(metric, "").replace(" ", ", ")
        style_axes(axes, x="training steps", y=f"difference in {metric}{unit}\n(95 % interval)",
                   grid="y", size=10)  # fmt: skip
        entries = sorted(
            zip(*axes.get_legend_handles_labels(), strict=True),
            key=lambda entry: entry[1].startswith("published"),
        )
        figure.legend(
            *zip(*entries, strict=True), loc="outside lower center", frameon=False, fontsize=9,
            ncols=1 if len(entries) < 5 else 2,
        )  # fmt: skip
        return svg(figure)


def curves_by_group(groups: Mapping[str, Mapping[str, Curves]], metric: str, baseline: str) -> str:
    """A column per group: the curve of every method, below it the differences to the baseline.

    groups: name -> label of the method -> curves.
    """
    labels = list(dict.fromkeys(label for methods in groups.values() for label in methods))
    drawn: dict[str, Any] = {}  # the lines of the legend
    with default_style():
        figure = Figure(figsize=(9.0, 6.0))  # a solved layout varies in last digits
        figure.subplots_adjust(left=0.09, right=0.98, bottom=0.09, top=0.86, wspace=0.2, hspace=0.2)
        columns = figure.subplots(2, len(groups), squeeze=False, sharex="col").T
        for (name, methods), (top, low) in zip(groups.items(), columns, strict=True):
            base = methods.get(baseline, {})
            low.axhline(0.0, color=COLORS[0], linewidth=1.2, linestyle=DASHED)
            for label, curves in methods.items():
                look = {"color": Style(labels.index(label)).color, "linewidth": 2.0}
                draw_curve(top, list(curves.values()), look)
                drawn[label] = top.get_lines()[-1]
                pairs = [(own, base[seed]) for seed, own in curves.items() if seed in base]
                if pairs and label != baseline:
                    apart = [{s: own[s] - other[s] for s in own.keys() & other.keys()}
                             for own, other in pairs]  # fmt: skip
                    draw_curve(low, apart, look)
            counts = [len(curves) for curves in methods.values()]
            interval = ", 95 %" if max(counts) > 1 else ""
            style_axes(top, title=f"{name} (n = {_range(counts)}{interval})", size=10)
            style_axes(low, x="training step", size=10)
            format_steps(low)
        columns[0][0].set_ylabel(metric, color=INK)
        columns[0][1].set_ylabel(f"minus that of {baseline}", color=INK)
        figure.align_ylabels()
        lines = [drawn[label] for label in labels]
        figure.legend(lines, labels, loc="upper center", ncols=4, frameon=False, fontsize=11)
        return svg(figure)


def _range(counts: Sequence[int]) -> str:
    return " to ".join(map(str, dict.fromkeys((min(counts), max(counts)))))


# -- the README's picture -----------------------------------------------------------------------


def front(data: Data) -> str | None:
    """Bits, test accuracy and training cost so far over the run, of a study's data file.

    None if a method or its curves are not there; both methods are drawn over their common seeds.
    """
    entries = {m["label"]: m for m in data["methods"] if m["label"] in FRONT}
    curves = {label: curves_of(entry) for label, entry in entries.items()}
    seeds = (
        sorted(set.intersection(*map(set, curves.values()))) if len(curves) == len(FRONT) else ()
    )
    if not seeds:
        return None
    paths = {label: bits_and_cost(entries[label]) for label in FRONT}
    base_bits, base_costs = paths[next(iter(FRONT))]
    with default_style():
        figure = Figure(figsize=(9.0, 6.2))  # a solved layout of shared axes varies in last digits
        figure.subplots_adjust(left=0.105, right=0.925, bottom=0.1, top=0.92, hspace=0.13)
        top, middle, low = figure.subplots(3, sharex=True, height_ratios=[1.0, 1.5, 1.2])
        for label, color in FRONT.items():
            bits, costs = paths[label]
            look: dict[str, Any] = {"color": color, "linewidth": 2.4, "label": label}
            steps = range(len(bits) + 1)
            top.step(steps, [*bits, bits[-1]], where="post", **look)
            draw_curve(middle, [curves[label][seed] for seed in seeds], look)
            share = [100 * cost / base_costs[-1] for cost in costs]
            low.plot(steps, [0.0, *share], **look)
            low.annotate(
                f"{share[-1]:.0f} %", (len(share), share[-1]), xytext=(6, 0), va="center",
                textcoords="offset points", fontsize=13, color=color, annotation_clip=False,
            )  # fmt: skip
        titles = {
            top: "bits, forward",
            middle: f"test accuracy, %\n(n = {len(seeds)}, 95 %)",
            low: "BitOPs so far,\n% of static",
        }
        for axes, title in titles.items():
            style_axes(axes, y=title, size=12)
            axes.yaxis.label.set_size(13)
        widths = sorted({width for found, _ in paths.values() for width in found})
        top.set_yticks([widths[0], widths[-1]])
        low.set_xlim(0, len(base_bits))
        low.set_ylim(0, 105)
        low.set_xlabel("training step", color=INK, fontsize=13)
        figure.align_ylabels()
        figure.legend(
            *top.get_legend_handles_labels(), loc="upper center", ncols=len(FRONT), frameon=False,
            fontsize=14,
        )  # fmt: skip
        return svg(figure)


def draw_curve(axes: Axes, curves: Sequence[Mapping[int, float]], look: Data) -> None:
    """The mean and its interval at the steps where every run has a finite value."""
    found = [
        (step, summarize_values(values))
        for step in sorted(set.intersection(*map(set, curves)))
        if all(map(math.isfinite, values := [curve[step] for curve in curves]))
    ]
    steps = [step for step, _ in found]
    axes.plot(steps, [each.mean for _, each in found], marker="o", markersize=5, **look)
    lows, highs = (
        [each.mean if (end := getattr(each, side)) is None else end for _, each in found]
        for side in ("low", "high")
    )
    axes.fill_between(steps, lows, highs, color=look["color"], alpha=0.18, linewidth=0)


def bits_and_cost(method: Data) -> tuple[list[int], list[float]]:
    """The forward bits of every step, and the run's BitOPs so far at its end.

    The steps share the run's BitOPs as their bits say; the last batch of an epoch, which is
    smaller, counts as the others.
    """
    spec = spec_from_config(from_settings(method["settings"]))
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
