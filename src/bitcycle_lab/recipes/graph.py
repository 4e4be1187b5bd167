"""Graph networks: the follow-up's GCN on OGBN-Arxiv, and citation graphs for small machines.

Sums along edges stay float32 (the follow-up's FP-Agg). The option `--precision.quantizer_options.\
aggregation quantized` quantizes the summed features and their errors too (Q-Agg).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bitcycle_lab.recipes.base import FAMILIES, FEW_CYCLES, FOLLOW_UP, Recipe, float32, small
from bitcycle_lab.tasks.config import DataConfig, ModelConfig
from bitcycle_lab.train.config import EvalConfig, LrConfig, OptimizerConfig, RunConfig


def arxiv_gcn() -> RunConfig:
    """128-512-512-40, full batch, 500 steps (an epoch is a step)."""
    return RunConfig(
        name="arxiv-gcn",
        task="nodes",
        model=ModelConfig(name="gcn", options={"hidden_dim": 512, "num_layers": 3, "dropout": 0.2}),
        data=DataConfig(name="ogbn-arxiv", features="standardized"),
        optimizer=OptimizerConfig(name="adam", lr=1e-3),
        lr=LrConfig(policy="cosine", min_lr=1e-4),
        precision=float32(),
        eval=EvalConfig(every=0.02),
        steps=500,
    )


def citations(dataset: str, model: str) -> RunConfig:
    """Two convolutions with 64 units, 200 steps: seconds."""
    return RunConfig(
        name=f"{dataset}-{model.removeprefix('graph')}",
        task="nodes",
        model=ModelConfig(name=model, options={"hidden_dim": 64, "num_layers": 2, "dropout": 0.5}),
        data=DataConfig(name=dataset, features="row_normalized"),
        optimizer=OptimizerConfig(name="adam", lr=0.01, weight_decay=5e-4),
        lr=LrConfig(policy="constant"),
        precision=float32(),
        eval=EvalConfig(every=0.1),
        steps=200,
    )


def quantize_sums(config: RunConfig) -> RunConfig:
    """The same run in mode Q-Agg."""
    precision = replace(config.precision, quantizer_options={"aggregation": "quantized"})
    return replace(config, name=f"{config.name}-qagg", precision=precision)


@FAMILIES.register("arxiv")
def arxiv() -> Iterator[Recipe]:
    """The follow-up's."""
    yield Recipe(config=arxiv_gcn(), cycles=FEW_CYCLES, cells=(FOLLOW_UP,))


@FAMILIES.register("citation-graphs")
def citation_graphs() -> Iterator[Recipe]:
    """Graphs of some thousand nodes."""
    for dataset in ("cora", "citeseer", "pubmed"):
        for model in ("gcn", "graphsage"):
            yield from small(citations(dataset, model), "8/8", "3-8/8")
