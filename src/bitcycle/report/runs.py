"""Runs as a picture: learning curves, and the bits of each as a band underneath."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bitcycle.extras import require
from bitcycle.report import draw
from bitcycle.report.study_look import COLOURS, INK
from bitcycle.schedules import Bits, parse_schedule
from bitcycle.study.compare import Compared, ComparedRun, Comparison
from bitcycle.study.numbers import UNITS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)))
_BAND = 0.62  # inches


@draw.register(Comparison)
def draw_comparison(comparison: Comparison) -> Figure:
    """Above: the metric of every evaluation, thin for a seed, thick for the mean of several.

    Below: the bits of weights at every step; of an adaptive schedule those that were logged.
    """
    entries = comparison.entries
    metrics = list(dict.fromkeys(entry.metric for entry in entries))
    if len(metrics) > 1:
        raise ValueError(
            f"these runs are judged by {' and '.join(metrics)}, which share no axis: draw the runs "
            "of one metric at a time"
        )
    figure_module = require("matplotlib.figure", extra="report", purpose="pictures")
    figure: Figure = figure_module.Figure(
        figsize=(8.0, 3.9 + _BAND * len(entries)), layout="constrained"
    )
    upper, *bands = figure.subplots(
        1 + len(entries), sharex=True, squeeze=False, height_ratios=[3.6, *[_BAND] * len(entries)]
    )[:, 0]
    splits = [
        _draw_curves(upper, entry, _colour(i), _DASHES[i // len(COLOURS) % len(_DASHES)])
        for i, entry in enumerate(entries)
    ]
    _draw_bands(bands, entries)
    _dress(upper, metrics[0], splits)
    bands[-1].set_xlabel("step", color=INK)
    bands[-1].xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")
    return figure


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _draw_curves(axes: Axes, entry: Compared, colour: str, dashes: Any) -> str:
    """Gives back which split was drawn: `train` where there were too few evaluations."""
    curves = [curve(run, entry.metric) for run in entry.runs]
    is_several = len(curves) > 1
    for _, steps, values in curves:
        width, shade = (0.8, 0.4) if is_several else (1.6, 1.0)
        axes.plot(
            steps, values, color=colour, linewidth=width, alpha=shade, linestyle=dashes,
            label=None if is_several else _name(entry),
        )  # fmt: skip
    if is_several:
        steps, means = _mean_curve([(s, v) for _, s, v in curves])
        axes.plot(
            steps, means, color=colour, linewidth=2.0, linestyle=dashes, label=_name(entry)
        )  # fmt: skip
    return curves[0][0]


def curve(run: ComparedRun, metric: str) -> tuple[str, list[int], list[float]]:
    """(split, steps, values): of the evaluations, or of training where those are fewer than two."""
    evaluated = [line for line in run.lines if line["kind"] == "eval"]
    if len(evaluated) > 1:
        lines, split = evaluated, str(evaluated[0]["split"])
    else:
        lines, split = [line for line in run.lines if line["kind"] == "train"], "train"
    return split, [line["step"] for line in lines], [line[metric] for line in lines]


def _mean_curve(
    curves: Sequence[tuple[list[int], list[float]]],
) -> tuple[list[int], list[float]]:
    """Over the steps that every seed has."""
    tables = [dict(zip(steps, values, strict=True)) for steps, values in curves]
    common = sorted(set.intersection(*(set(table) for table in tables)))
    return common, [sum(table[step] for table in tables) / len(tables) for step in common]


def _name(entry: Compared) -> str:
    number = len(entry.runs)
    return f"{entry.name}, {number} seeds" if number > 1 else entry.name


def _draw_bands(bands: Sequence[Axes], entries: Sequence[Compared]) -> None:
    """All on one scale, with float32 one step above the most bits."""
    drawn = [bits_of(entry) for entry in entries]
    numbers = [value for _, bits in drawn for value in bits if value is not None]
    low, high = min(numbers, default=0), max(numbers, default=0)
    float_at = high + max(1.0, (high - low) / 4)
    has_float = any(None in bits for _, bits in drawn)
    top = float_at if has_float else high
    room = 0.3 * (top - low or 2)
    floor = low - room
    for i, (axes, (edges, bits)) in enumerate(zip(bands, drawn, strict=True)):
        heights = [float_at if value is None else value for value in bits]
        axes.stairs(heights, edges, baseline=floor, fill=True, color=f"{_colour(i)}40", linewidth=0)
        axes.stairs(heights, edges, baseline=None, color=_colour(i), linewidth=1.0)
        axes.set_ylim(floor, top + room)
        whole = sorted({value for value in bits if value is not None})
        ticks: dict[float, str] = {end: str(end) for end in (*whole[:1], *whole[-1:])}
        if None in bits:
            ticks[float_at] = "fp32"
        axes.set_yticks(list(ticks), list(ticks.values()))
        axes.set_ylabel("bits", color=INK, fontsize=8, rotation=0, ha="right", va="center")
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=INK, labelsize=8)


def bits_of(entry: Compared) -> tuple[list[int], list[Bits]]:
    """Step edges and the bits between them: by the schedule, else as logged in the first run."""
    run = entry.runs[0]
    precision = entry.config.precision
    text = precision.weight if precision.weight != "inherit" else precision.forward
    total = run.result.steps if run.result is not None else entry.config.steps
    if total is not None and not isinstance(text, dict) and precision.auto_high is None:
        schedule = parse_schedule(text)
        if not schedule.is_adaptive:
            return list(range(total + 1)), schedule.values(total)
    logged = [line for line in run.lines if line["kind"] == "train"]
    if not logged:
        return [0], []
    bits = [line["bits"]["weight"] for line in logged]
    plain: list[Bits] = [value[-1] if isinstance(value, list) else value for value in bits]
    return [0, *(line["step"] for line in logged)], plain


def _dress(axes: Axes, metric: str, splits: Sequence[str]) -> None:
    unit = UNITS.get(metric, "").strip()
    split = " and ".join(dict.fromkeys(splits))
    axes.set_ylabel(f"{split} {metric}{f', {unit}' if unit else ''}", color=INK)
    axes.legend(frameon=False, fontsize=8)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=9)
