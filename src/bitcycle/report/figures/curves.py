"""Learning curves of runs, with the bits of the weights below."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from bitcycle.analysis.compare import Comparison
from bitcycle.report import draw
from bitcycle.report.figures import style
from bitcycle.report.figures.schedules import (
    MOST_SEGMENTS,
    BitsAxis,
    BitsLine,
    bits_axis,
    draw_line,
    plotly_bits_axis,
    stairs,
)
from bitcycle.report.figures.style import INK, Style
from bitcycle.report.runs import MethodLog, comparison_logs
from bitcycle.study.results import RunStatus
from bitcycle.study.summary import metric_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Points = tuple[tuple[int, float], ...]  # step, value

_BAND = 0.62  # inches
_MARKED = 30  # points of a mean that get a marker each on the page
_FEW = 3  # the same in a picture
_FILLED = 4  # methods whose bits are filled on the page
_PICTURE_POINTS = 1000  # of a curve in a picture


# -- data -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Quantity:
    """A number of the log lines. kinds: eval, train, or both: each method shows one of them."""

    kinds: tuple[str, ...]
    key: str
    title: str


@dataclass(frozen=True, kw_only=True)
class MethodCurves:
    """One method: the curve of every seed, and their mean over the steps that all have."""

    key: str
    label: str
    number: int
    seeds: tuple[tuple[int, Points], ...]
    mean: Points
    bits: BitsLine


@dataclass(frozen=True, kw_only=True)
class LearningCurves:
    """The curves of one quantity. bits_axis: common to all methods."""

    y_title: str
    methods: tuple[MethodCurves, ...]
    bits_axis: BitsAxis

    @property
    def has_bits(self) -> bool:
        """Whether any method's bits are known and not all float32."""
        found = (bits for each in self.methods for _, _, bits in each.bits.segments)
        return any(bits is not None for bits in found)


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


def learning_curves(
    methods: Sequence[MethodLog], quantity: Quantity, *, limit: int
) -> LearningCurves:
    """The curves of all methods. limit: the most points per curve."""
    found = []
    for number, method in enumerate(methods):
        kind = _kind(method, quantity)
        curves = [(run.seed, _points(run, kind, quantity.key)) for run in method.started]
        seeds = [(seed, points) for seed, points in curves if points]
        mean = _mean([points for _, points in seeds])
        is_other = kind == "train" and len(quantity.kinds) > 1
        label, bits = method.method.label, tuple(method.weight_bits())
        found.append(
            MethodCurves(
                key=method.method.key,
                label=f"{label}, training" if is_other else label,
                number=number,
                seeds=tuple((seed, tuple(style.thin(points, limit))) for seed, points in seeds),
                mean=tuple(style.thin(mean, limit)),
                bits=BitsLine(label=label, segments=bits, number=number),
            )
        )
    values = [bits for each in found for _, _, bits in each.bits.segments]
    return LearningCurves(
        y_title=quantity.title, methods=tuple(found), bits_axis=bits_axis(values, max_ticks=6)
    )


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
    return tuple(sorted(found.items()))


def _mean(curves: Sequence[Points]) -> Points:
    tables = [dict(points) for points in curves]
    common = sorted(set(tables[0]).intersection(*tables[1:])) if tables else []
    return tuple((step, fmean(table[step] for table in tables)) for step in common)


# -- matplotlib -----------------------------------------------------------------------------------


@draw.register(Comparison)
def draw_comparison(comparison: Comparison) -> Figure:
    """Curves of the metric, thin for a seed, thick for the mean; below, the bits of the weights."""
    metrics = list(dict.fromkeys(entry.metric for entry in comparison.groups))
    if len(metrics) > 1:
        raise ValueError(
            f"these runs are judged by {' and '.join(metrics)}, which share no axis: draw the runs "
            "of one metric at a time"
        )
    methods = comparison_logs(comparison)
    none = Quantity((), metrics[0], metrics[0])
    [quantity, *_] = [*quantities(methods, metrics[0]), none]
    return draw_curves(learning_curves(methods, quantity, limit=_PICTURE_POINTS))


def draw_curves(curves: LearningCurves) -> Figure:
    """The curves above, a band of bits per method below."""
    number = len(curves.methods)
    figure = style.new_figure(8.0, 3.9 + _BAND * number)
    upper, *bands = figure.subplots(
        1 + number, sharex=True, squeeze=False, height_ratios=[3.6, *[_BAND] * number]
    )[:, 0]
    for method, band in zip(curves.methods, bands, strict=True):
        look, is_several = Style(method.number), len(method.seeds) > 1
        name = f"{method.label}, {len(method.seeds)} seeds" if is_several else method.label
        for _, points in method.seeds if is_several else ():
            upper.plot(
                *_columns(points), color=look.color, linewidth=0.8, alpha=0.4, markersize=4,
                marker=look.marker[0] if _num_finite(points) <= _FEW else None,
            )  # fmt: skip
        upper.plot(
            *_columns(method.mean), color=look.color, linestyle=look.dash[0], label=name,
            linewidth=2.0 if is_several else 1.6, markersize=6,
            marker=look.marker[0] if _num_finite(method.mean) <= _FEW else None,
        )  # fmt: skip
        _draw_band(band, method, curves.bits_axis)
    style.style_axes(upper, y=curves.y_title)
    upper.legend(frameon=False, fontsize=8)
    bands[-1].set_xlabel("step", color=INK)
    style.format_steps(bands[-1])
    return figure


def _num_finite(points: Points) -> int:
    return sum(math.isfinite(value) for _, value in points)


def _columns(points: Points) -> tuple[list[int], list[float]]:
    return [step for step, _ in points], [value for _, value in points]


def _draw_band(axes: Axes, method: MethodCurves, scale: BitsAxis) -> None:
    color = Style(method.number).color
    draw_line(axes, method.bits, scale, fill=f"{color}40", color=color, linewidth=1.0)
    ends = bits_axis({bits for _, _, bits in method.bits.segments}, max_ticks=2)
    axes.set_ylim(*scale.range)
    axes.set_yticks([scale.height(bits) for bits in ends.tick_bits], ends.labels)
    axes.set_ylabel(scale.title, color=INK, fontsize=8, rotation=0, ha="right", va="center")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=8)


# -- plotly ---------------------------------------------------------------------------------------


def curves_chart(curves: LearningCurves) -> style.Chart:
    """The curves above, the bits of all methods on one axis below."""
    traces = [trace for method in curves.methods for trace in _traces(method)]
    if not curves.has_bits:
        return style.chart(
            traces, height=360, xaxis=style.axis("step"), yaxis=style.axis(curves.y_title)
        )
    is_few = len(curves.methods) <= _FILLED
    for method in curves.methods:
        look = Style(method.number)
        is_filled = is_few and len(method.bits.segments) > 1
        fill = {"fill": "tozeroy", "fillcolor": look.css(0.12)} if is_filled else {}
        options = {"line": {"color": look.css(), "width": 1.6 if is_few else 1.0}, **fill}
        if method.bits.segments:
            few = tuple(style.thin(method.bits.segments, MOST_SEGMENTS))
            bits = replace(method.bits, segments=few)
            traces.append(stairs(bits, curves.bits_axis, yaxis="y2", meta=method.key, **options))
    return style.chart(
        traces,
        height=480,
        xaxis=style.axis("step", rangemode="tozero", anchor="y2"),
        yaxis=style.axis(curves.y_title, domain=[0.36, 1.0]),
        yaxis2=plotly_bits_axis(curves.bits_axis, domain=[0.0, 0.27]),
    )


def _traces(method: MethodCurves) -> Iterator[dict[str, Any]]:
    """Thin lines for the seeds and a thick one for the mean; a single seed is its own mean."""
    look = Style(method.number)
    common = {
        "meta": method.key,
        "hovertemplate": "%{fullData.name}<br>step %{x:,}: %{y:.4g}<extra></extra>",
    }
    if len(method.seeds) > 1:
        for seed, points in method.seeds:
            yield style.line(
                points, line={"color": look.css(), "width": 1}, opacity=0.4,
                name=style.plain_text(f"{method.label}, seed {seed}"), **common,
            )  # fmt: skip
    if not method.mean:
        return
    what = "mean of seeds" if len(method.seeds) > 1 else f"seed {method.seeds[0][0]}"
    is_marked = _num_finite(method.mean) <= _MARKED
    yield style.line(
        method.mean,
        mode="lines+markers" if is_marked else "lines",
        line={"color": look.css(), "width": 2.4, "dash": look.dash[1]},
        marker={"symbol": look.marker[1], "size": 7, "color": look.css()},
        name=style.plain_text(f"{method.label}, {what}"),
        **common,
    )
