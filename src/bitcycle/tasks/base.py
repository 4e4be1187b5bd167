"""What a task is: model + data + loss + metric, with nothing known of bits or training loops.

Adding one is one file: a subclass of `Task` (of `SampleTask`, when its samples are independent),
registered in `TASKS` under its name. `examples/own_task.py` does it outside the package.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from bitcycle.data import Batch
from bitcycle.registry import Registry
from bitcycle.tasks.config import DataConfig, ModelConfig

Split = Literal["train", "validation", "test"]
Sums = dict[str, Tensor]  # additive over batches and processes; always has "loss" and "count"


class TrainBatches(Protocol):
    """Training batches at explicit positions."""

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps until every sample was seen once."""
        ...

    def batch_at(self, step: int, micro: int = 0) -> Batch:
        """One micro-batch of one optimizer step."""
        ...

    def from_step(self, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        """Every micro-batch from a step on."""
        ...


class Task(ABC):
    """Loads its data when built, so that bad data is an error before anything else happens."""

    metric: ClassVar[str]
    higher_is_better: ClassVar[bool]

    def __init__(self, model: ModelConfig, data: DataConfig, *, seed: int = 0) -> None:
        self.model_config, self.data_config, self.seed = model, data, seed

    @classmethod  # noqa: B027 (a task may take any name)
    def check(cls, model: ModelConfig, data: DataConfig) -> None:
        """Raise ValueError for names and options this task does not know; reads no data."""

    @abstractmethod
    def build_model(self) -> nn.Module:
        """The float model, initialized from torch's present random state."""

    @abstractmethod
    def train_batches(
        self, *, rank: int = 0, world_size: int = 1, num_micro: int = 1
    ) -> TrainBatches:
        """Shuffled, augmented batches of the training split."""

    @abstractmethod
    def eval_batches(self, split: Split, *, rank: int = 0, world_size: int = 1) -> Iterable[Batch]:
        """Every sample of a split once, un-augmented; `train` too (ranges, norms, landscapes)."""

    @property
    @abstractmethod
    def has_validation(self) -> bool:
        """Whether there is a validation split to choose a model by."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Sums]:
        """The mean loss to differentiate, and the sums that metrics are made of."""

    @abstractmethod
    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Sums over a split -> metrics, `self.metric` and "loss" among them."""

    @property
    def chance(self) -> float | None:
        """The metric of a blind guess if it is an accuracy; None for other metrics."""
        return None

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """The arguments the model is called with."""
        return (batch.inputs,)

    def example_inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """A small batch to trace the model's cost with: the first samples of a batch."""
        return tuple(part[:2] for part in self.inputs(batch))

    def num_samples(self, batch: Batch) -> int:
        """How many samples the whole optimizer step has, over processes and micro-batches."""
        return round(self.inputs(batch)[0].shape[0] / batch.share)

    def to(self, device: torch.device | str) -> None:  # noqa: B027 (a task may keep nothing)
        """Move data that is kept in memory to the device that uses it."""

    def start_pass(self) -> None:  # noqa: B027 (only recurrent tasks carry state)
        """Forget what was carried from batch to batch: a pass over other data begins."""

    def files(self) -> dict[str, str]:
        """Texts a run keeps in its folder by name, such as a tokenizer; written once."""
        return {}

    def take_files(self, folder: Path) -> None:  # noqa: B027 (most tasks have none)
        """Use what `files` left in a run's folder; called before anything else, if at all."""

    def state_dict(self) -> dict[str, Any]:
        """What must be saved to go on exactly: nothing, unless state is carried over batches."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027
        """Take back what `state_dict` gave."""


TASKS: Registry[type[Task]] = Registry("task", "bitcycle.tasks")
