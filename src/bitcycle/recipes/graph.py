"""Graph networks: the follow-up's GCN on OGBN-Arxiv, and citation graphs for small machines.

Each at two modes: FP-Agg, whose sums along edges stay float32, and Q-Agg (`-qagg`), whose summed
features and their errors are quantized too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from bitcycle.published import BitRange
from bitcycle.recipes.base import FAMILIES, FEW_CYCLES, TEN, Recipe, Scale, quantized, schedule_text
from bitcycle.tasks.config import DataConfig, ModelConfig
from bitcycle.train.config import (
    EvalConfig,
    LrConfig,
    OptimizerConfig,
    PrecisionConfig,
    RunConfig,
)

Build = Callable[[str, PrecisionConfig], RunConfig]
# suffix of the name -> what graph layers sum along edges, and how the follow-up calls it
MODES = {"": ("float32", "FP-Agg"), "-qagg": ("quantized", "Q-Agg")}


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


def citations(dataset: str, model: str, name: str, precision: PrecisionConfig) -> RunConfig:
    """Two convolutions with 64 units, 200 steps: seconds."""
    short = {"graphsage": "sage"}.get(model, model)
    return RunConfig(
        name=f"{dataset}-{short}-{name}",
        task="nodes",
        model=ModelConfig(name=model, options={"hidden_dim": 64, "num_layers": 2, "dropout": 0.5}),
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
    yield from _suite(arxiv, ("3-8/8", "3-6/6"), TEN, "full", ("follow-up paper",))


@FAMILIES.register("citation-graphs")
def schedules_on_citations() -> Iterator[Recipe]:
    """Graphs of some thousand nodes: CPT and all ten schedules for a GCN, CPT for a GraphSAGE."""
    for dataset in ("cora", "citeseer", "pubmed"):
        for model, methods in (("gcn", ("cpt", *TEN)), ("graphsage", ("cpt",))):

            def build(
                name: str, precision: PrecisionConfig, dataset: str = dataset, model: str = model
            ) -> RunConfig:
                return citations(dataset, model, name, precision)

            yield from _suite(build, ("3-8/8",), methods, "small", ())


def _suite(
    build: Build,
    cells: tuple[str, ...],
    methods: tuple[str, ...],
    scale: Scale,
    notes: tuple[str, ...],
) -> Iterator[Recipe]:
    yield Recipe(config=build("float32", PrecisionConfig()), scale=scale)
    for suffix, (aggregation, name) in MODES.items():
        told = (*notes, f"{name}: sums along edges are {aggregation}")
        for cell in cells:
            bits = BitRange.parse(cell)
            static = bits._replace(low=bits.high)
            texts = {f"static-{static.name}": static.high} | {
                f"{method.lower()}-{bits.name}": schedule_text(method, bits, FEW_CYCLES)
                for method in methods
            }
            for run, forward in texts.items():
                precision = quantized(forward, bits.backward)
                if aggregation != "float32":  # the quantizer's default
                    options = {"aggregation": aggregation}
                    precision = replace(precision, quantizer_options=options)
                yield Recipe(config=build(f"{run}{suffix}", precision), notes=told, scale=scale)
