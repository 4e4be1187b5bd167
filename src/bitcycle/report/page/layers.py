"""Training cost by layer, priced from the configuration as `bitcycle cost` does."""

from __future__ import annotations

from collections.abc import Sequence

from bitcycle.cost.product import MATMULS
from bitcycle.cost.result import Cost, LayerCost
from bitcycle.extras import MissingExtraError
from bitcycle.report.page.chart import Figure, card, chart, choice, figure, section
from bitcycle.report.page.escape import Html, chart_text, join, tag
from bitcycle.report.page.looks import colour
from bitcycle.report.page.numbers import cost_unit, plain
from bitcycle.report.page.recorded import RecordedMethod
from bitcycle.study.cost import price
from bitcycle.study.subject import find_subject

MOST_METHODS = 12  # a model is built and traced for each
MOST_LAYERS = 90
_NOTE = (
    "BitOPs of all training steps by the exact convention, counted before training from the "
    "configuration with every batch full; the results have what was really spent."
)


def layers_section(methods: Sequence[RecordedMethod]) -> Html | None:
    """A chart per method that has begun; None without one."""
    begun = [method for method in methods if method.begun]
    charts: dict[str, Html] = {}
    problems: list[str] = []
    for method in begun[:MOST_METHODS]:
        try:
            cost = price_method(method)
        except (ValueError, OSError, RuntimeError, NotImplementedError, MissingExtraError) as error:
            problems.append(f"{method.title}: not known before training ({error})")
            continue
        label = f"training cost by layer of {method.title}"
        charts[method.title] = chart(layer_figure(cost), label=label)
    if not charts and not problems:
        return None
    if len(begun) > MOST_METHODS:
        problems.append(f"{len(begun) - MOST_METHODS} more methods: see `bitcycle cost`")
    notes = [tag("p", problem, class_="note") for problem in problems]
    body = card(None, choice("Method", charts), note=_NOTE) if charts else None
    return section("layers", "Cost by layer", join(body, *notes))


def price_method(method: RecordedMethod) -> Cost:
    """What its configuration costs, with the lower end of the schedule that its run found."""
    config = method.result.method.config
    given = config.precision.given(auto=method.found_low)
    forward = {"forward": str(given["forward"])} if config.precision.auto_high is not None else {}
    path = method.begun[0].state.directory / "config.yaml"
    return price(find_subject(str(path), roles=forward, total_steps=method.num_steps or None)).cost


def layer_figure(cost: Cost) -> Figure:
    """A bar per layer, from the input on downwards, in parts by matmul."""
    layers = cost.layers if len(cost.layers) <= MOST_LAYERS else _by_stage(cost)
    names = [chart_text(layer.name or "(the model itself)") for layer in layers]
    size, unit = cost_unit(max((layer.bitops for layer in layers), default=1))
    bars = [
        {
            "type": "bar", "orientation": "h", "name": matmul, "y": names,
            "x": [plain(getattr(layer, matmul) / size) for layer in layers],
            "marker": {"color": colour(number)},
            "hovertemplate": f"%{{y}}<br>{matmul}: %{{x:.3~g}} {unit}<extra></extra>",
        }
        for number, matmul in enumerate(MATMULS)
    ]  # fmt: skip
    return figure(
        bars,
        height=110 + 17 * len(names),
        barmode="stack",
        bargap=0.25,
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        xaxis={"title": {"text": unit}},
        yaxis={"autorange": "reversed", "tickfont": {"size": 11}, "dtick": 1},
    )


def _by_stage(cost: Cost) -> tuple[LayerCost, ...]:
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
