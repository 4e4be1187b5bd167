"""The model and the data of a run's configuration, and what a task is known for without torch.

The task checks the names (`Task.check`). The built-in tasks take those of `bitcycle ls models` and
`bitcycle ls datasets`; a task of your own may take any.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from bitcycle_lab.listing import read_entries

Features = Literal["raw", "row_normalized", "standardized"]
MIN_VOCABULARY = 3


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A model by name and the options of its builder.

    path: the folder of a pretrained model, for tasks that take one (pairs).
    """

    name: str = "digits_resnet"
    options: dict[str, Any] = field(default_factory=dict)
    path: str | None = None


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """A dataset by name, its folder, and how it is divided into batches.

    subset, validation: the number (int) or fraction (float) of training samples to keep, and to
    hold out. batch_size: samples per optimizer step over all processes; parallel columns of text
    for a recurrent language model. sequence_length: tokens per sample, for language and pairs.
    vocabulary: the number of most frequent words to keep; the others become <unk>. features: the
    normalization of a graph's node features.
    """

    name: str = "digits"
    root: str | None = None
    batch_size: int = 64
    eval_batch_size: int = 256
    subset: int | float | None = None
    validation: int | float | None = None
    sequence_length: int = 35
    vocabulary: int | None = None
    features: Features = "raw"
    num_workers: int = 2
    cache_dir: str | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "eval_batch_size", "sequence_length", "num_workers"):
            if getattr(self, name) < 1:
                raise ValueError(f"data.{name} ({getattr(self, name)}) must be at least 1")
        for name in ("subset", "validation"):
            amount = getattr(self, name)
            if isinstance(amount, float) and not 0 < amount < 1:
                raise ValueError(f"data.{name} ({amount}) as a fraction must be between 0 and 1")
            if isinstance(amount, int) and amount < 1:
                raise ValueError(f"data.{name} ({amount}) as a number must be at least 1")
        if self.vocabulary is not None and self.vocabulary < MIN_VOCABULARY:
            raise ValueError(
                f"data.vocabulary ({self.vocabulary}) must be at least {MIN_VOCABULARY}: "
                "<unk>, <eos> and a word"
            )


def model_kind(options: Iterable[str]) -> str:
    """The kind of data that a model takes, from the names of its builder's options.

    >>> model_kind(["num_classes", "width"]), model_kind(["vocab_size", "dropout"])
    ('image', 'language')
    """
    names = set(options)
    if "vocab_size" in names:
        return "pair" if "num_classes" in names else "language"
    return "graph" if "in_features" in names else "image"


class Metric(NamedTuple):
    """A metric by name, such as accuracy, and its direction."""

    name: str
    higher_is_better: bool


def task_metric(task: str) -> Metric:
    """The metric of a task.

    >>> task_metric("language")
    Metric(name='perplexity', higher_is_better=False)
    """
    entry = read_entries("bitcycle_lab.tasks", "TASKS.register").get(task)
    if entry is not None:
        return Metric(entry.attributes["metric"], entry.attributes["higher_is_better"])
    from bitcycle_lab.tasks.base import TASKS

    kind = TASKS[task]  # a task of user code, or an error
    return Metric(kind.metric, kind.higher_is_better)
