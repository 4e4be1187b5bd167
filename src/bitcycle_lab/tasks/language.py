"""Word-level language modelling: cross-entropy per word, perplexity.

A recurrent model reads parallel columns of text and carries its state from batch to batch; other
models read independent blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitcycle_lab.data import (
    IGNORE,
    Batch,
    Batches,
    Blocks,
    OnePass,
    StreamPass,
    Streams,
    load_corpus,
)
from bitcycle_lab.models import MODELS, build_model
from bitcycle_lab.tasks.base import TASKS, Split, Sums, Task, TrainBatches, check_names
from bitcycle_lab.tasks.config import DataConfig, ModelConfig

State = tuple[Tensor, ...]


@TASKS.register("language")
class LanguageModelling(Task):
    """Language modelling; the model's vocabulary size defaults to the corpus's."""

    metric: ClassVar[str] = "perplexity"
    higher_is_better: ClassVar[bool] = False

    def __init__(self, model: ModelConfig, data: DataConfig, *, seed: int = 0) -> None:
        super().__init__(model, data, seed=seed)
        corpus = load_corpus(data.name, data.root, cache_dir=data.cache_dir)
        self.corpus = corpus.with_most_frequent(data.vocabulary or len(corpus.vocabulary))
        self.is_recurrent = MODELS[model.name].family == "lstm_lm"
        self.carried: dict[int, State] = {}  # by micro-batch

    @classmethod
    def check(cls, model: ModelConfig, data: DataConfig) -> None:
        """Raise ValueError unless model and dataset are registered for language."""
        check_names("language", model, data)
        if data.subset is not None or data.validation is not None:
            raise ValueError(
                f"data.subset ({data.subset}) and data.validation ({data.validation}) must be "
                "null: a corpus has splits of its own"
            )

    def build_model(self) -> nn.Module:
        """The model with the corpus's vocabulary size."""
        options = {"vocab_size": len(self.corpus.vocabulary), **self.model_config.options}
        return build_model(self.model_config.name, **options)

    def _tokens(self, split: Split) -> Tensor:
        tokens: Tensor = getattr(self.corpus, split)
        return tokens

    def train_batches(
        self, *, rank: int = 0, world_size: int = 1, num_micro: int = 1
    ) -> TrainBatches:
        """Parallel columns of text for a recurrent model, shuffled blocks otherwise."""
        data = self.data_config
        if self.is_recurrent:
            return Streams(
                self._tokens("train"),
                batch_size=data.batch_size,
                bptt=data.sequence_length,
                rank=rank,
                world_size=world_size,
                num_micro=num_micro,
            )
        return Batches(
            Blocks(tokens=self._tokens("train"), length=data.sequence_length),
            batch_size=data.batch_size,
            seed=self.seed,
            rank=rank,
            world_size=world_size,
            num_micro=num_micro,
        )

    def eval_batches(self, split: Split, *, rank: int = 0, world_size: int = 1) -> Iterable[Batch]:
        """Every word but the first is predicted once."""
        data, tokens = self.data_config, self._tokens(split)
        if self.is_recurrent:
            return StreamPass(
                tokens,
                batch_size=min(data.eval_batch_size, max(1, (len(tokens) - 1) // 2)),
                bptt=data.sequence_length,
                rank=rank,
                world_size=world_size,
            )
        return OnePass(
            Blocks(tokens=tokens, length=data.sequence_length, keep_last=True),
            batch_size=data.eval_batch_size,
            rank=rank,
            world_size=world_size,
        )

    @property
    def has_validation(self) -> bool:
        """Every corpus has one."""
        return True

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """Tokens (N, T); batches of streams are (T, N)."""
        return (batch.inputs.t() if self.is_recurrent else batch.inputs,)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Sums]:
        """Mean cross-entropy per word without padding; sums of loss and words."""
        if self.is_recurrent:
            batch = replace(batch, targets=batch.targets.t())
            state = None if batch.starts_stream else self.carried.get(batch.micro)
            logits, state = model(*self.inputs(batch), state)
            self.carried[batch.micro] = tuple(part.detach() for part in state)
        else:
            (tokens,) = self.inputs(batch)
            logits = model(tokens)
        targets = batch.targets.reshape(-1)
        loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets, ignore_index=IGNORE)
        count = (targets != IGNORE).sum().double()
        return loss, {"loss": loss.detach().double() * count, "count": count}

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Perplexity, exp(mean loss), and the mean loss."""
        mean = sums["loss"] / max(sums["count"], 1.0)
        return {"perplexity": math.exp(min(mean, 700.0)), "loss": mean}

    def start_pass(self) -> None:
        """Reset the recurrent state."""
        self.carried = {}

    def state_dict(self) -> dict[str, Any]:
        """The recurrent state of every micro-batch."""
        return {"carried": {micro: list(state) for micro, state in self.carried.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the recurrent state."""
        self.carried = {micro: tuple(parts) for micro, parts in state["carried"].items()}

    def to(self, device: torch.device | str) -> None:
        """Move the recurrent state to a device; batches are moved one by one."""
        self.carried = {m: tuple(p.to(device) for p in s) for m, s in self.carried.items()}
