"""How far cyclic bits end from static ones, over the length of a run."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from bitcycle.extras import require
from bitcycle.report.study_look import COLOURS, INK, MARKERS
from bitcycle.study.numbers import POINTS
from bitcycle.study.publish.page import all_pairs
from bitcycle.study.publish.pairs import Pair, top_pairs
from bitcycle.study.publish.restore import Evidence
from bitcycle.study.summary import summarize

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FEWEST = 3  # lengths, below which there is no line
_LENGTH = re.compile(r"(^|, )[\d,]+ steps$")  # that the name of a group ends with
Line = dict[int, Pair]  # by the steps of a run


def length_lines(evidence: Evidence) -> dict[str, dict[str, Line]]:
    """Group -> what is compared -> its pair at every length; only what has several lengths.

    A group is one for all lengths that its name ends with.
    """
    found: dict[str, dict[str, Line]] = {}
    for pair in all_pairs(evidence, summarize(evidence.result), top_pairs):
        config = pair.cyclic.method.method.config
        if config.steps is None or not math.isfinite(pair.difference.mean):
            continue
        name = _LENGTH.sub("", pair.group.group) or f"{config.model.name} on {config.data.name}"
        lines = found.setdefault(name, {})
        label = f"{pair.cyclic.label} minus {pair.static.label}"
        lines.setdefault(label, {})[config.steps] = pair
    for network, lines in found.items():
        found[network] = {label: line for label, line in lines.items() if len(line) >= _FEWEST}
    return {network: lines for network, lines in found.items() if lines}


def draw_lengths(evidence: Evidence) -> Figure:
    """A panel for each network, a line for each comparison, with the interval of every point."""
    networks = length_lines(evidence)
    module = require("matplotlib.figure", extra="report", purpose="pictures")
    figure: Figure = module.Figure(figsize=(7.6, 3.6 * len(networks)), layout="constrained")
    grid = figure.subplots(len(networks), 1, squeeze=False)
    for (axes,), (network, lines) in zip(grid, networks.items(), strict=True):
        _draw(axes, network, lines)
    return figure


def _draw(axes: Axes, network: str, lines: dict[str, Line]) -> None:
    pairs = [pair for line in lines.values() for pair in line.values()]
    axes.axhline(0, color=INK, linewidth=0.8)
    for k, (label, line) in enumerate(lines.items()):
        steps = sorted(line)
        means = [line[n].difference.mean for n in steps]
        bars = zip(*(_bar(line[n]) for n in steps), strict=True)
        axes.errorbar(
            steps, means, yerr=list(bars), label=label, capsize=3, elinewidth=1.0, linewidth=1.3,
            color=COLOURS[(k + 2) % len(COLOURS)], marker=MARKERS[(k + 2) % len(MARKERS)],
        )  # fmt: skip
    lengths = sorted({steps for line in lines.values() for steps in line})
    axes.set_xscale("log")
    axes.set_xticks(lengths, [f"{steps:,}" for steps in lengths])
    axes.minorticks_off()
    axes.set_xlabel("steps of a run", color=INK)
    group = pairs[0].group
    better = "above 0: the cycle is better" if group.higher_is_better else "below 0: it is better"
    axes.set_ylabel(f"difference, {POINTS.get(group.metric, group.metric).strip()}", color=INK)
    counts = sorted({pair.difference.n for pair in pairs})
    number = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    small = f"mean and 95 % interval of {number} paired seeds" if counts != [1] else "one seed each"
    names = f", {next(iter(lines))}" if len(lines) == 1 else ""
    axes.set_title(
        f"{network}{names}\n{small}; {better}",
        loc="left", fontsize=9, color=INK,
    )  # fmt: skip
    if len(lines) > 1:
        axes.legend(frameon=False, fontsize=8.5, labelcolor=INK)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=9)


def _bar(pair: Pair) -> tuple[float, float]:
    """From the mean down and up; no bar without an interval."""
    found = pair.difference
    if found.low is None or found.high is None:
        return math.nan, math.nan
    return found.mean - found.low, found.high - found.mean
