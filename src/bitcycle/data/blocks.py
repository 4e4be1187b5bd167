"""Text as independent blocks of equal length for a Transformer; each block is a sample."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bitcycle.data.batch import IGNORE, Key


@dataclass(frozen=True, kw_only=True, eq=False)
class Blocks:
    """Block i is words i * length ... (i + 1) * length, its targets are the words that follow.

    For training the last, short block is left out; with `keep_last` (evaluation) it is filled up
    with the target IGNORE, so that every word but the first is predicted exactly once. To be
    iterated by `Batches` and `OnePass`; inputs and targets are (batch, length).
    """

    tokens: Tensor
    length: int
    keep_last: bool = False

    num_prefetch = 0

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"length ({self.length}) must be at least 1")
        if len(self) == 0:
            raise ValueError(
                f"{len(self.tokens)} words make no block of {self.length}: use a smaller length"
            )

    def __len__(self) -> int:
        num_targets = len(self.tokens) - 1
        return -(-num_targets // self.length) if self.keep_last else num_targets // self.length

    def fetch(self, indices: NDArray[np.int64], key: Key | None) -> tuple[Tensor, Tensor]:
        """Inputs and targets; text has no augmentation, the key is not used."""
        device = self.tokens.device
        starts = torch.from_numpy(np.ascontiguousarray(indices)).to(device).view(-1, 1)
        positions = starts * self.length + torch.arange(self.length, device=device)
        num_targets = len(self.tokens) - 1
        is_padding = positions >= num_targets
        positions = positions.clamp(max=num_targets - 1)
        targets = self.tokens[positions + 1].masked_fill(is_padding, IGNORE)
        return self.tokens[positions].long(), targets.long()

    def to(self, device: torch.device | str) -> Blocks:
        """The same blocks on `device`."""
        return replace(self, tokens=self.tokens.to(device))
