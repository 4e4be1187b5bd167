"""Training cost by layer and matmul, counted from the configuration as `bitcycle cost` does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bitcycle.analysis.cost import estimate_cost
from bitcycle.analysis.numbers import PREFIXES
from bitcycle.analysis.training_spec import find_spec
from bitcycle.cost import Cost, LayerCost
from bitcycle.kernels.base import MATMULS
from bitcycle.report.figures import style
from bitcycle.report.figures.style import Style
from bitcycle.report.runs import MethodLog

MOST_LAYERS = 90  # more are summed by stage


@dataclass(frozen=True, kw_only=True)
class LayerBars:
    """The cost of every layer, from the input on, in parts by matmul."""

    names: tuple[str, ...]
    parts: dict[str, tuple[float, ...]]  # output, grad_input, grad_weight
    unit: str


def price_method(method: MethodLog) -> Cost:
    """The cost of a method's configuration, with the lower bound that its range test found."""
    precision = method.config.precision
    given = precision.schedule_texts(auto=method.found_low)
    forward = {"forward": str(given["forward"])} if precision.auto_high is not None else {}
    path = method.started[0].directory / "config.yaml"
    return estimate_cost(
        find_spec(str(path), roles=forward, total_steps=method.num_steps or None)
    ).cost


def layer_bars(cost: Cost) -> LayerBars:
    """The bars of a cost."""
    layers = cost.layers if len(cost.layers) <= MOST_LAYERS else _stages(cost)
    size, unit = cost_unit(max((layer.bitops for layer in layers), default=1))
    return LayerBars(
        names=tuple(layer.name or "(the model itself)" for layer in layers),
        parts={name: tuple(getattr(each, name) / size for each in layers) for name in MATMULS},
        unit=unit,
    )


def cost_unit(most: float) -> tuple[float, str]:
    """The unit for costs up to `most`: its size and its name.

    >>> cost_unit(8.8e12), cost_unit(600)
    ((1000000000000.0, 'TBitOPs'), (1.0, 'BitOPs'))
    """
    for size, prefix in PREFIXES:
        if most >= size:
            return size, f"{prefix}BitOPs"
    return 1.0, "BitOPs"


def _stages(cost: Cost) -> tuple[LayerCost, ...]:
    stages = list(cost.by_stage())
    parts: dict[str, list[LayerCost]] = {stage: [] for stage in stages}
    for layer in cost.layers:
        parts[_stage_of(layer.name, stages)].append(layer)
    return tuple(
        LayerCost(
            name=stage,
            kind="stage",
            traffic=sum(layer.traffic for layer in inside),
            **{matmul: sum(getattr(layer, matmul) for layer in inside) for matmul in MATMULS},
        )
        for stage, inside in parts.items()
    )


def _stage_of(name: str, stages: Sequence[str]) -> str:
    return next(stage for stage in stages if name == stage or name.startswith(f"{stage}."))


def layers_chart(bars: LayerBars) -> style.Chart:
    """Stacked horizontal bars."""
    names = [style.plain_text(name) for name in bars.names]
    traces = [
        {
            "type": "bar", "orientation": "h", "name": matmul, "y": names,
            "x": [style.rounded(value) for value in values],
            "marker": {"color": Style(number).css()},
            "hovertemplate": f"%{{y}}<br>{matmul}: %{{x:.3~g}} {bars.unit}<extra></extra>",
        }
        for number, (matmul, values) in enumerate(bars.parts.items())
    ]  # fmt: skip
    return style.chart(
        traces,
        height=110 + 17 * len(names),
        showlegend=True,
        barmode="stack",
        bargap=0.25,
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        xaxis=style.axis(bars.unit),
        yaxis={"autorange": "reversed", "tickfont": {"size": 11}, "dtick": 1},
    )
