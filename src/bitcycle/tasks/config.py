"""What to train on what: the model's and the data's part of a run's configuration.

What the names mean is the task's business (`Task.check`): the built-in tasks take those of
`bitcycle ls models` and `bitcycle ls datasets`, a task of your own may take any.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Features = Literal["raw", "row_normalized", "standardized"]
SMALLEST_VOCABULARY = 3


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A model by name and the options of its builder.

    path: a folder with a downloaded model to start from, for tasks that take one (pairs).
    """

    name: str = "digits_resnet"
    options: dict[str, Any] = field(default_factory=dict)
    path: str | None = None


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """A dataset by name, where it lies, and how it is cut into batches.

    subset, validation: a number (int) or a fraction (float) of the training samples to keep, and
    to hold out. batch_size counts samples (streams, for a recurrent language model) per optimizer
    step over all processes. sequence_length: tokens per sample or window, for language and pairs.
    vocabulary: how many words a text keeps, the most frequent ones; the others become <unk>.
    features: how a graph's node features are scaled.
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
        if self.vocabulary is not None and self.vocabulary < SMALLEST_VOCABULARY:
            raise ValueError(
                f"data.vocabulary ({self.vocabulary}) must be at least {SMALLEST_VOCABULARY}: "
                "<unk>, <eos> and a word"
            )
