"""Learning curves of runs, with the bits of the weights below."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from bitcycle.schedules.segments import Segment
from bitcycle_lab.report.figures import style
from bitcycle_lab.report.figures.schedules import BitsLine, bits_axis, draw_line
from bitcycle_lab.report.figures.style import INK, Style
from bitcycle_lab.report.runs import MethodLog, method_logs
from bitcycle_lab.study.results import RunStatus, StudyResult
from bitcycle_lab.study.summary import metric_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Points = list[tuple[int, float]]  # step, value

_BAND = 0.62  # inches
_FEW = 3  # points that get a marker each


@dataclass(frozen=True)
class Quantity:
    """A number of the log lines. kinds: eval, train, or both: each method shows one of them."""

    kinds: tuple[str, ...]
    key: str
    title: str


def quantities(methods: Sequence[MethodLog], metric: str) -> list[Quantity]:
    """What was logged: the metric, the training loss, the loss of the evaluations.

    The metric of a method is that of the evaluations if a run has at least two, else of training.
    """
    runs = [run for method in methods for run in method.started]
    lines = [line for run in runs for line in run.metrics]
    splits = sorted({str(line.get("split")) for line in lines if line.get("kind") == "eval"})
    on, title = " and ".join(splits), metric_title(metric)
    either = Quantity(("eval", "train"), metric, title)
    kinds = {_kind(method, either) for method in methods}
    names = {kind: name for kind, name in (("eval", on), ("train", "training")) if kind in kinds}
    wanted = [
        Quantity(tuple(names), metric, f"{' and '.join(names.values())} {title}"),
        Quantity(("train",), "loss", "training loss"),
        Quantity(("eval",), "loss", f"{on} loss"),
    ]
    return [each for each in wanted if any(_kind(method, each) for method in methods)]


def _kind(method: MethodLog, quantity: Quantity) -> str | None:
    """The first kind of which a run has two points, else the last of which one has any."""
    longest = {
        kind: max((len(_points(run, kind, quantity.key)) for run in method.started), default=0)
        for kind in quantity.kinds
    }
    curves = [kind for kind, number in longest.items() if number > 1]
    single = [kind for kind, number in longest.items() if number == 1]
    return next(iter([*curves, *reversed(single)]), None)


def _points(run: RunStatus, kind: str | None, key: str) -> Points:
    found = {
        line["step"]: float(line[key])
        for line in run.metrics
        if line.get("kind") == kind and isinstance(line.get(key), int | float)
    }
    return sorted(found.items())


def _mean(curves: Sequence[Points]) -> Points:
    tables = [dict(points) for points in curves]
    common = sorted(set(tables[0]).intersection(*tables[1:])) if tables else []
    return [(step, fmean(table[step] for table in tables)) for step in common]


def draw_comparison(result: StudyResult) -> Figure:
    """Curves of the metric, finished or not; below, the bits of the weights."""
    metrics = list(dict.fromkeys(result.study.metric(group) for group in result.study.groups))
    if len(metrics) > 1:
        raise ValueError(
            f"these runs are judged by {' and '.join(metrics)}, which share no axis: draw the runs "
            "of one metric at a time"
        )
    methods = method_logs(result)
    none = Quantity((), metrics[0], metrics[0])
    [quantity, *_] = [*quantities(methods, metrics[0]), none]
    figure = draw_curves(methods, quantity)
    figure.axes[0].legend(frameon=False, fontsize=8)
    return figure


def draw_curves(
    methods: Sequence[MethodLog],
    quantity: Quantity,
    *,
    limit: int = 1000,
    width: float = 8.0,
    with_bits: bool = True,
) -> Figure:
    """Thin curves for the seeds, thick ones for their means; below, a band of bits per method.

    limit: the most points per curve. width: in inches.
    """
    number = len(methods) if with_bits else 0
    figure = style.new_figure(width, 3.6 + _BAND * number)
    upper, *bands = figure.subplots(
        1 + number, sharex=True, squeeze=False, height_ratios=[3.4, *[_BAND] * number]
    )[:, 0]
    for place, method in enumerate(methods):
        _draw_method(upper, method, quantity, Style(place), limit)
    if with_bits:
        _draw_bands(bands, methods)
    style.style_axes(upper, y=quantity.title)
    figure.axes[-1].set_xlabel("step", color=INK)
    style.format_steps(figure.axes[-1])
    return figure


def _draw_method(
    axes: Axes, method: MethodLog, quantity: Quantity, look: Style, limit: int
) -> None:
    kind = _kind(method, quantity)
    seeds = [found for run in method.started if (found := _points(run, kind, quantity.key))]
    label = method.method.label
    if kind == "train" and len(quantity.kinds) > 1:
        label += ", training"
    if len(seeds) > 1:
        label += f", {len(seeds)} seeds"
        for points in seeds:
            _draw_points(axes, points, look, limit, linewidth=0.8, alpha=0.4, markersize=4)
    _draw_points(
        axes, _mean(seeds), look, limit, label=style.plain_text(label), markersize=6,
        linestyle=look.dash[0], linewidth=2.0 if len(seeds) > 1 else 1.6,
    )  # fmt: skip


def _draw_points(axes: Axes, points: Points, look: Style, limit: int, **options: Any) -> None:
    is_short = sum(math.isfinite(value) for _, value in points) <= _FEW
    shown = style.thin(points, limit)
    axes.plot(
        [step for step, _ in shown], [value for _, value in shown], color=look.color,
        marker=look.marker[0] if is_short else None, **options,
    )  # fmt: skip


def _trained_bits(method: MethodLog) -> tuple[Segment, ...]:
    """The bits of the weights up to the last step of any run."""
    last = max((run.last_step for run in method.runs), default=0)
    planned = method.weight_bits()
    return tuple(
        Segment(start, min(end, last), bits) for start, end, bits in planned if start < last
    )


def _draw_bands(bands: Sequence[Axes], methods: Sequence[MethodLog]) -> None:
    """The bits of each method, all on one scale."""
    lines = [BitsLine(label="", segments=_trained_bits(method)) for method in methods]
    scale = bits_axis((bits for each in lines for _, _, bits in each.segments), max_ticks=6)
    for number, (axes, line) in enumerate(zip(bands, lines, strict=True)):
        color = Style(number).color
        draw_line(axes, line, scale, fill=f"{color}40", color=color, linewidth=1.0)
        ends = bits_axis({bits for _, _, bits in line.segments}, max_ticks=2)
        axes.set_ylim(*scale.range)
        axes.set_yticks([scale.height(bits) for bits in ends.tick_bits], ends.labels)
        axes.set_ylabel(scale.title, color=INK, fontsize=8, rotation=0, ha="right", va="center")
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=INK, labelsize=8)
        axes.set_facecolor("none")
