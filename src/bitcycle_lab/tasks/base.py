"""The base classes of tasks: a task is a model, its data, a loss and a metric.

To add a task, write a subclass of `Task`, or of `SampleTask` if its samples are independent, and
register it in `TASKS`. `examples/own_task.py` does so outside the package.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from bitcycle.registry import Registry, list_some, unknown_name
from bitcycle_lab.data import DATASETS, Batch, Batches, OnePass, Samples
from bitcycle_lab.data.base import Kind
from bitcycle_lab.models import MODELS
from bitcycle_lab.tasks.config import DataConfig, ModelConfig, model_kind

Split = Literal["train", "validation", "test"]
Sums = dict[str, Tensor]  # added over batches and ranks; has "loss" and "count"


class Task(ABC):
    """A model, its data, a loss and a metric. Loads its data when it is built."""

    metric: ClassVar[str]
    higher_is_better: ClassVar[bool]

    def __init__(self, model: ModelConfig, data: DataConfig, *, seed: int = 0) -> None:
        self.model_config, self.data_config, self.seed = model, data, seed

    @classmethod  # noqa: B027 (a task may take any name)
    def check(cls, model: ModelConfig, data: DataConfig) -> None:
        """Raise ValueError for unknown names and options, without reading data."""

    @abstractmethod
    def build_model(self) -> nn.Module:
        """A new float model, initialized from torch's random state."""

    @abstractmethod
    def train_batches(
        self, *, rank: int = 0, world_size: int = 1, num_micro: int = 1
    ) -> TrainBatches:
        """Shuffled, augmented batches of the training split."""

    @abstractmethod
    def eval_batches(self, split: Split, *, rank: int = 0, world_size: int = 1) -> Iterable[Batch]:
        """Every sample of a split once, without augmentation."""

    @property
    @abstractmethod
    def has_validation(self) -> bool:
        """Whether there is a validation split."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Sums]:
        """The mean loss of a batch, and the sums for `metrics`."""

    @abstractmethod
    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Metrics from the sums over a split; has `self.metric` and "loss"."""

    @property
    def chance(self) -> float | None:
        """The accuracy of a random guess in percent; None if the metric is not an accuracy."""
        return None

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """The arguments the model is called with."""
        return (batch.inputs,)

    def example_inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """The first samples of a batch, to trace the model's cost."""
        return tuple(part[:2] for part in self.inputs(batch))

    def num_samples(self, batch: Batch) -> int:
        """The number of samples in the whole optimizer step, over ranks and micro-batches."""
        return round(self.inputs(batch)[0].shape[0] / batch.share)

    def to(self, device: torch.device | str) -> None:  # noqa: B027 (a task may keep nothing)
        """Move data in memory to a device."""

    def start_pass(self) -> None:  # noqa: B027 (only recurrent tasks carry state)
        """Reset the state that is carried from batch to batch, before a pass over other data."""

    def files(self) -> dict[str, str]:
        """Text files by name that a run writes into its folder once, such as a tokenizer."""
        return {}

    def take_files(self, folder: Path) -> None:  # noqa: B027 (most tasks have none)
        """Use the `files` of a run's folder; called right after the task is built."""

    def state_dict(self) -> dict[str, Any]:
        """State that is carried from batch to batch; empty for most tasks."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027
        """Restore what `state_dict` returned."""


TASKS: Registry[type[Task]] = Registry("task", "bitcycle_lab.tasks")


class TrainBatches(Protocol):
    """Training batches by step."""

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps per epoch."""
        ...

    def batch_at(self, step: int, micro: int = 0) -> Batch:
        """One micro-batch of one optimizer step."""
        ...

    def from_step(self, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        """Every micro-batch from a step on."""
        ...


class SampleTask(Task):
    """A task with independent samples: subclasses pass their splits to `__init__`."""

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
        """Shuffled, augmented batches of the training split."""
        return Batches(
            self.splits["train"],
            batch_size=self.data_config.batch_size,
            seed=self.seed,
            rank=rank,
            world_size=world_size,
            num_micro=num_micro,
        )

    def eval_batches(self, split: Split, *, rank: int = 0, world_size: int = 1) -> Iterable[Batch]:
        """Every sample of a split once, in order."""
        size = self.data_config.eval_batch_size
        return OnePass(self.splits[split], batch_size=size, rank=rank, world_size=world_size)

    @property
    def has_validation(self) -> bool:
        """Whether there is a validation split."""
        return "validation" in self.splits

    def to(self, device: torch.device | str) -> None:
        """Move samples in memory to a device, which then gathers and augments them."""
        self.splits = {split: samples.to(device) for split, samples in self.splits.items()}


def accuracy_metrics(sums: Mapping[str, float]) -> dict[str, float]:
    """Accuracy in percent and mean loss, from the sums "top1", "loss" and "count"."""
    count = max(sums["count"], 1.0)
    return {"accuracy": 100 * sums["top1"] / count, "loss": sums["loss"] / count}


def check_names(kind: Kind, model: ModelConfig, data: DataConfig) -> None:
    """Raise ValueError unless model and dataset are of this kind and the options are known."""
    entry, info = MODELS[model.name], DATASETS[data.name]
    for option in model.options:
        if option not in entry.options:
            raise unknown_name(f"option of model {model.name!r}", option, entry.options)
    if model_kind(entry.options) != kind:
        fitting = [name for name, each in MODELS.items() if model_kind(each.options) == kind]
        raise _other_kind("model", model.name, model_kind(entry.options), kind, fitting)
    if info.kind != kind:
        fitting = [name for name, each in DATASETS.items() if each.kind == kind]
        raise _other_kind("dataset", data.name, info.kind, kind, fitting)
    if model.path is not None and kind != "pair":
        raise ValueError(f"model.path ({model.path}) is for the task pairs, not for {model.name!r}")
    if data.vocabulary is not None and kind != "language":
        raise ValueError(
            f"data.vocabulary ({data.vocabulary}) is for the task language, not for {data.name!r}"
        )


def _other_kind(what: str, name: str, has: str, needs: str, fitting: list[str]) -> ValueError:
    return ValueError(
        f"{what} {name!r} is of kind {has!r}, the task takes kind {needs!r}: {list_some(fitting)}"
    )
