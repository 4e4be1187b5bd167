"""Training cost by layer and matmul, counted from the configuration as `bitcycle cost` does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bitcycle.cost import Cost, LayerCost
from bitcycle.kernels.base import MATMULS
from bitcycle.tables import THE_MODEL
from bitcycle_lab.cost.run import estimate_cost
from bitcycle_lab.cost.spec import find_spec
from bitcycle_lab.report import draw
from bitcycle_lab.report.figures import style
from bitcycle_lab.report.figures.style import Style
from bitcycle_lab.report.runs import MethodLog
from bitcycle_lab.study.number_text import PREFIXES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_LAYERS = 60  # more are summed by stage


def price_method(method: MethodLog) -> Cost:
    """The cost of a method's configuration, with the lower bound that its range test found."""
    precision = method.config.precision
    given = precision.schedule_texts(auto=method.found_low)
    forward = {"forward": str(given["forward"])} if precision.auto_high is not None else {}
    path = method.started[0].directory / "config.yaml"
    return estimate_cost(
        find_spec(str(path), roles=forward, total_steps=method.num_steps or None)
    ).cost


@draw.register(Cost)
def draw_cost(cost: Cost) -> Figure:
    """The cost of every layer, from the input on, as a bar with a part for each matmul."""
    layers = cost.layers if len(cost.layers) <= MOST_LAYERS else _stages(cost)
    size, unit = cost_unit(max((layer.bitops for layer in layers), default=1))
    figure = style.new_figure(7.0, 1.0 + 0.2 * len(layers))
    axes = figure.subplots()
    places, left = range(len(layers)), [0.0] * len(layers)
    for number, matmul in enumerate(MATMULS):
        widths = [getattr(layer, matmul) / size for layer in layers]
        axes.barh(places, widths, left=left, height=0.75, color=Style(number).color, label=matmul)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    style.style_axes(axes, x=unit, grid="x")
    names = [style.plain_text(layer.name) or THE_MODEL for layer in layers]
    axes.set_yticks(places, names)
    axes.set_ylim(len(layers) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0, labelsize=8)
    figure.legend(loc="outside upper center", frameon=False, fontsize=9, ncols=len(MATMULS))
    return figure


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
