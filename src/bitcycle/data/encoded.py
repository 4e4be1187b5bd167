"""Pairs of sentences as tokens: encoded when they are fetched, each to the same length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bitcycle.data.batch import Key
from bitcycle.data.splits import SentencePairs
from bitcycle.data.tokenizer import read_tokenizer


class PairEncoder:
    """Pairs -> int64 (N, 3, length): tokens, mask (1: a token, 0: padding), which sentence.

    The tokenizer's JSON is made when it is first needed; set `text` before that to bring one.
    """

    def __init__(self, make: Callable[[], str], *, length: int) -> None:
        self._make = make
        self.length = length

    @cached_property
    def text(self) -> str:
        """The tokenizer as JSON."""
        return self._make()

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer itself."""
        return read_tokenizer(self.text, length=self.length)

    @property
    def vocab_size(self) -> int:
        """How many tokens there are."""
        size: int = self.tokenizer.get_vocab_size()
        return size

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> Tensor:
        encoded = self.tokenizer.encode_batch(list(pairs))
        rows = [(each.ids, each.attention_mask, each.type_ids) for each in encoded]
        return torch.tensor(rows, dtype=torch.int64).view(len(rows), 3, self.length)


@dataclass(frozen=True, eq=False)
class EncodedPairs:
    """Samples of a task; a target is label + num_labels * language.

    One number for both, so that a target is a number as everywhere; `split_targets` undoes it.
    """

    pairs: SentencePairs
    encoder: PairEncoder
    num_labels: int
    device: torch.device | str = "cpu"

    num_prefetch = 0  # some milliseconds, on threads of the tokenizer's own

    def __len__(self) -> int:
        return len(self.pairs)

    def fetch(self, indices: NDArray[np.int64], key: Key | None) -> tuple[Tensor, Tensor]:
        """Those pairs, in that order; there is no augmentation."""
        pairs = self.pairs
        inputs = self.encoder([(pairs.premises[i], pairs.hypotheses[i]) for i in indices])
        targets = pairs.labels[indices] + self.num_labels * pairs.languages[indices]
        return inputs.to(self.device), torch.from_numpy(targets).to(self.device)

    def to(self, device: torch.device | str) -> EncodedPairs:
        """The same pairs, fetched onto `device`."""
        return replace(self, device=device)


def split_targets(targets: Tensor, num_labels: int) -> tuple[Tensor, Tensor]:
    """Labels and languages.

    >>> split_targets(torch.tensor([2, 3, 7]), 3)
    (tensor([2, 0, 1]), tensor([0, 1, 2]))
    """
    return targets % num_labels, targets // num_labels
