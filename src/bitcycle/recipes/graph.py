"""Graph networks: the follow-up's GCN on OGBN-Arxiv, and citation graphs for small machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bitcycle.recipes.base import FAMILIES, Recipe, Scale
from bitcycle.recipes.parts import FEW_CYCLES, TEN, float_note, quantized, schedule_text
from bitcycle.recipes.tables import Bits
from bitcycle.tasks import DataConfig, ModelConfig
from bitcycle.train.config import (
    EvalConfig,
    LrConfig,
    OptimizerConfig,
    PrecisionConfig,
    RunConfig,
)

LAYER = "torch_geometric.nn.conv.gcn_conv.GCNConv"
NOTE = (
    "graph layers are not quantized yet, and a GCN has no others: its products and its aggregation "
    "would all stay float32, so a run at low precision refuses to start"
)


def arxiv(name: str, precision: PrecisionConfig) -> RunConfig:
    """128-512-512-40, full batch, 500 steps (an epoch is a step)."""
    return RunConfig(
        name=f"arxiv-gcn-{name}",
        task="nodes",
        model=ModelConfig(name="gcn", options={"hidden_dim": 512, "num_layers": 3, "dropout": 0.2}),
        data=DataConfig(name="ogbn-arxiv", features="standardized"),
        optimizer=OptimizerConfig(name="adam", lr=1e-3),
        lr=LrConfig(policy="cosine", min_lr=1e-4),
        precision=precision,
        eval=EvalConfig(every=0.02),
        steps=500,
    )


def citations(dataset: str, name: str, precision: PrecisionConfig) -> RunConfig:
    """Two convolutions with 64 units, 200 steps: seconds."""
    return RunConfig(
        name=f"{dataset}-gcn-{name}",
        task="nodes",
        model=ModelConfig(name="gcn", options={"hidden_dim": 64, "num_layers": 2, "dropout": 0.5}),
        data=DataConfig(name=dataset, features="row_normalized"),
        optimizer=OptimizerConfig(name="adam", lr=0.01, weight_decay=5e-4),
        lr=LrConfig(policy="constant"),
        precision=precision,
        eval=EvalConfig(every=0.1),
        steps=200,
    )


@FAMILIES.register("schedules-arxiv")
def ten_schedules_on_arxiv() -> Iterator[Recipe]:
    """Static bits, and each schedule at 8 cycles, at both ranges of the follow-up."""
    yield from _suite(arxiv, ("3-8/8", "3-6/6"), "full", ("follow-up paper",))


@FAMILIES.register("citation-graphs")
def ten_schedules_on_citations() -> Iterator[Recipe]:
    """The same on graphs of some thousand nodes."""
    for dataset in ("cora", "citeseer", "pubmed"):

        def build(name: str, precision: PrecisionConfig, dataset: str = dataset) -> RunConfig:
            return citations(dataset, name, precision)

        yield from _suite(build, ("3-8/8",), "small", ())


def _suite(
    build: Callable[[str, PrecisionConfig], RunConfig],
    cells: tuple[str, ...],
    scale: Scale,
    notes: tuple[str, ...],
) -> Iterator[Recipe]:
    yield Recipe(config=build("float32", PrecisionConfig()), scale=scale)
    notes = (*notes, *float_note(LAYER, NOTE))
    for cell in cells:
        bits = Bits.parse(cell)
        static = bits._replace(low=bits.high)
        precision = quantized(static.high, static.backward)
        yield Recipe(config=build(f"static-{static.name}", precision), notes=notes, scale=scale)
        for method in TEN:
            precision = quantized(schedule_text(method, bits, FEW_CYCLES), bits.backward)
            config = build(f"{method.lower()}-{bits.name}", precision)
            yield Recipe(config=config, notes=notes, scale=scale)
