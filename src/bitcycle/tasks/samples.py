"""Tasks whose samples are independent: batches, splits and devices come for free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from bitcycle.data import Batch, Batches, OnePass, Samples
from bitcycle.tasks.base import Split, Task
from bitcycle.tasks.config import DataConfig, ModelConfig


class SampleTask(Task):
    """Sub-classes hand their samples to `__init__`, and say what model, loss and metrics are."""

    def __init__(
        self,
        model: ModelConfig,
        data: DataConfig,
        *,
        seed: int = 0,
        splits: Mapping[Split, Samples],
    ) -> None:
        super().__init__(model, data, seed=seed)
        self.splits = dict(splits)

    def train_batches(self, *, rank: int = 0, world_size: int = 1, num_micro: int = 1) -> Batches:
        """Shuffled and augmented."""
        return Batches(
            self.splits["train"],
            batch_size=self.data_config.batch_size,
            seed=self.seed,
            rank=rank,
            world_size=world_size,
            num_micro=num_micro,
        )

    def eval_batches(self, split: Split, *, rank: int = 0, world_size: int = 1) -> Iterable[Batch]:
        """In order."""
        size = self.data_config.eval_batch_size
        return OnePass(self.splits[split], batch_size=size, rank=rank, world_size=world_size)

    @property
    def has_validation(self) -> bool:
        """Whether the task has such a split."""
        return "validation" in self.splits

    def to(self, device: torch.device | str) -> None:
        """Samples kept in memory are gathered and augmented where they are used."""
        self.splits = {split: samples.to(device) for split, samples in self.splits.items()}
