"""The demo's picture: accuracy against cost, and the bits over the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitcycle.extras import require
from bitcycle.report import draw
from bitcycle.schedules import parse_schedule
from bitcycle.study.demo import DemoResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK = "#333333"
# Okabe and Ito: told apart with any colour vision
_COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
_MARKERS = ("s", "o", "D", "^", "v", "P")


@draw.register(DemoResult)
def draw_demo(result: DemoResult) -> Figure:
    """Left: every seed and the mean of each method. Right: the forward bits of each at each step.

    float32 has no bits to draw and is in the left panel only.
    """
    figure_module = require("matplotlib.figure", extra="report", purpose="pictures")
    figure: Figure = figure_module.Figure(figsize=(10.0, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_accuracy(left, result)
    _draw_bits(right, result)
    for axes in (left, right):
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=_INK, labelsize=9)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", frameon=False,
                  ncols=len(result.rows), title="forward/backward bits")  # fmt: skip
    return figure


def _draw_accuracy(axes: Axes, result: DemoResult) -> None:
    for row, colour, marker in zip(result.rows, _COLOURS, _MARKERS, strict=False):
        costs = [row.relative_cost] * len(row.accuracies)
        axes.scatter(costs, row.accuracies, s=16, color=colour, alpha=0.45, linewidths=0)
        axes.errorbar(
            row.relative_cost, row.mean, yerr=row.spread, color=colour, marker=marker,
            markersize=8, capsize=4, linestyle="none", label=row.method,
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda cost, _: f"{cost:g}")
    axes.margins(x=0.12, y=0.15)
    axes.set_xlabel("training cost: BitOPs, static 8/8 = 1", color=_INK)
    axes.set_ylabel("test accuracy, %", color=_INK)
    seeds = len(result.rows[0].accuracies)
    spread = f"mean and deviation of {seeds} seeds" if seeds > 1 else "one seed"
    axes.set_title(f"Accuracy against cost ({spread})", loc="left", fontsize=10, color=_INK)


def _draw_bits(axes: Axes, result: DemoResult) -> None:
    all_bits: set[int] = set()
    for row, colour in zip(result.rows, _COLOURS, strict=False):
        values = parse_schedule(row.forward).values(row.num_steps)
        bits = [value for value in values if value is not None]
        if len(bits) < len(values):
            continue
        is_static = len(set(bits)) == 1  # a broad band, so that what touches it stays visible
        width, shade, order = (6.0, 0.35, 2) if is_static else (1.6, 1.0, 3)
        axes.stairs(
            bits, baseline=None, color=colour, linewidth=width, alpha=shade, zorder=order
        )  # fmt: skip
        all_bits.update(bits)
    axes.set_yticks(sorted(all_bits))
    axes.set_xlim(0, max(row.num_steps for row in result.rows))
    axes.set_xlabel("step", color=_INK)
    axes.set_ylabel("bits of weights and activations", color=_INK)
    title = "Forward bits at every step (float32 is not drawn)"
    axes.set_title(title, loc="left", fontsize=10, color=_INK)
