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

from bitcycle.data import DATASETS, Batch, Batches, OnePass, Samples
from bitcycle.data.base import Kind
from bitcycle.models import MODELS
from bitcycle.models.base import ModelEntry
from bitcycle.registry import Registry, unknown_name
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


def check_names(kind: Kind, model: ModelConfig, data: DataConfig) -> None:
    """Raise unless both names are registered, fit this kind of data, and the options are known."""
    entry, info = MODELS[model.name], DATASETS[data.name]
    for option in model.options:
        if option not in entry.options:
            raise unknown_name(f"option of model {model.name!r}", option, entry.options)
    if model_kind(entry) != kind:
        fitting = [name for name, each in MODELS.items() if model_kind(each) == kind]
        raise _other_kind("model", model.name, model_kind(entry), kind, fitting)
    if info.kind != kind:
        fitting = [name for name, each in DATASETS.items() if each.kind == kind]
        raise _other_kind("dataset", data.name, info.kind, kind, fitting)
    if model.path is not None and kind != "pair":
        raise ValueError(
            f"model.path ({model.path}) is for the task pairs; {model.name!r} is built from its "
            "options: leave it null"
        )
    if data.vocabulary is not None and kind != "language":
        raise ValueError(
            f"data.vocabulary ({data.vocabulary}) is for the task language; {data.name!r} is of "
            f"kind {info.kind!r}: leave it null"
        )


def model_kind(entry: ModelEntry) -> Kind:
    """The kind of data a model takes, told by the sizes it asks for.

    >>> [model_kind(MODELS[name]) for name in ("resnet20", "lstm_lm", "gcn", "bert")]
    ['image', 'language', 'graph', 'pair']
    """
    if "vocab_size" in entry.options:
        return "pair" if "num_classes" in entry.options else "language"
    return "graph" if "in_features" in entry.options else "image"


def _other_kind(what: str, name: str, has: Kind, needs: Kind, fitting: list[str]) -> ValueError:
    return ValueError(
        f"{what} {name!r} is of kind {has!r}, the task takes kind {needs!r}: {', '.join(fitting)}"
    )


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
