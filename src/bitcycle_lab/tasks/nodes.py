"""Node classification on one graph in full batches: cross-entropy, accuracy in percent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitcycle_lab.data import IGNORE, Batch, Graph, load_graph
from bitcycle_lab.models import build_model
from bitcycle_lab.tasks.base import TASKS, Split, Sums, Task, accuracy_metrics, check_names
from bitcycle_lab.tasks.config import DataConfig, ModelConfig


@dataclass(frozen=True)
class WholeGraph:
    """The same full batch at every step; targets outside the split are IGNORE."""

    graph: Graph
    split: Split

    @property
    def steps_per_epoch(self) -> int:
        """A step is an epoch."""
        return 1

    def batch_at(self, step: int, micro: int = 0) -> Batch:
        """All nodes."""
        mask: Tensor = getattr(self.graph, f"{self.split}_mask")
        targets = torch.where(mask, self.graph.targets, IGNORE)
        return Batch(inputs=self.graph.features, targets=targets, step=step, epoch=step)

    def from_step(self, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        """One batch per step."""
        return map(self.batch_at, count(start) if stop is None else range(start, stop))


@TASKS.register("nodes")
class NodeClassification(Task):
    """Node classification; the model's features and classes default to the graph's."""

    metric: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True

    def __init__(self, model: ModelConfig, data: DataConfig, *, seed: int = 0) -> None:
        super().__init__(model, data, seed=seed)
        graph = load_graph(data.name, data.root)
        if data.features == "row_normalized":
            graph = graph.with_row_normalized_features()
        elif data.features == "standardized":
            graph = graph.with_standardized_features()
        self.graph = graph

    @classmethod
    def check(cls, model: ModelConfig, data: DataConfig) -> None:
        """Raise ValueError unless model and dataset are registered for graphs."""
        check_names("graph", model, data)
        if data.subset is not None or data.validation is not None:
            raise ValueError(
                f"data.subset ({data.subset}) and data.validation ({data.validation}) must be "
                "null: a graph has masks of its own"
            )

    @property
    def chance(self) -> float:
        """100 / num_classes."""
        return 100 / self.graph.num_classes

    def build_model(self) -> nn.Module:
        """The model with the graph's features and classes."""
        sizes = {"in_features": self.graph.features.shape[1], "num_classes": self.graph.num_classes}
        return build_model(self.model_config.name, **{**sizes, **self.model_config.options})

    def train_batches(
        self, *, rank: int = 0, world_size: int = 1, num_micro: int = 1
    ) -> WholeGraph:
        """The whole graph, every step."""
        if world_size > 1 or num_micro > 1:
            raise ValueError(
                f"a full-batch graph cannot be divided over {world_size} processes x {num_micro} "
                "micro-batches"
            )
        return WholeGraph(self.graph, "train")

    def eval_batches(self, split: Split, *, rank: int = 0, world_size: int = 1) -> Iterable[Batch]:
        """The whole graph, once."""
        return [WholeGraph(self.graph, split).batch_at(0)]

    @property
    def has_validation(self) -> bool:
        """Every graph has one."""
        return True

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """Features and edges."""
        return (batch.inputs, self.graph.edge_index)

    def example_inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """The whole graph."""
        return self.inputs(batch)

    def to(self, device: torch.device | str) -> None:
        """Move the graph to a device."""
        self.graph = self.graph.to(device)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Sums]:
        """Mean cross-entropy over the split's nodes; sums of loss, correct nodes and nodes."""
        logits = model(*self.inputs(batch))  # (nodes, classes)
        loss = F.cross_entropy(logits, batch.targets, ignore_index=IGNORE)
        with torch.no_grad():
            counts = batch.targets != IGNORE
            num_nodes = counts.sum().double()
            hits = ((logits.argmax(dim=1) == batch.targets) & counts).sum().double()
            sums = {"loss": loss.detach().double() * num_nodes, "count": num_nodes, "top1": hits}
        return loss, sums

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Accuracy in percent and the mean loss."""
        return accuracy_metrics(sums)
