"""What a loader hands to a training loop, and what it needs from a set of samples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

IGNORE = -100
"""The target that no loss or metric counts (the default `ignore_index` of cross-entropy)."""


class Key(NamedTuple):
    """What an augmentation depends on besides the sample's index."""

    seed: int
    epoch: int


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One micro-batch of one process.

    `share` is its part of the optimizer step's targets: over all micro-batches and processes of a
    step the shares add up to 1, so the sum of `mean_loss * share` is the step's mean loss even
    where the slices are uneven. (DDP averages over processes: multiply by their number.)
    """

    inputs: Tensor
    targets: Tensor
    indices: Tensor | None = None
    step: int = 0
    epoch: int = 0
    micro: int = 0
    share: float = 1.0
    starts_stream: bool = False
    """Language streams: the carried state is to be reset before this batch."""

    @property
    def num_targets(self) -> int:
        """How many targets count: samples, or tokens that are not padding."""
        if self.targets.dim() == 1:
            return len(self.targets)
        return int((self.targets != IGNORE).sum())

    def to(self, device: torch.device | str) -> Batch:
        """The same batch with inputs and targets on `device`."""
        return replace(self, inputs=self.inputs.to(device), targets=self.targets.to(device))


S = TypeVar("S", bound="Samples")


@runtime_checkable
class Samples(Protocol):
    """A fixed number of samples that can be fetched by index, augmented or not."""

    @property
    def num_prefetch(self) -> int:
        """How many batches are worth preparing ahead: 0 when a fetch is cheap."""
        ...

    def __len__(self) -> int: ...

    def fetch(self, indices: NDArray[np.int64], key: Key | None) -> tuple[Tensor, Tensor]:
        """Inputs and targets of these samples; `key=None` means un-augmented."""
        ...

    def to(self: S, device: torch.device | str) -> S:
        """The same samples, fetched onto `device`."""
        ...


def slice_bounds(length: int, num_parts: int, part: int) -> tuple[int, int]:
    """The contiguous slice of `length` things that part `part` of `num_parts` gets.

    >>> [slice_bounds(10, 4, part) for part in range(4)]
    [(0, 2), (2, 5), (5, 7), (7, 10)]
    """
    return length * part // num_parts, length * (part + 1) // num_parts


def check_position(*, rank: int, world_size: int, batch_size: int, num_micro: int = 1) -> None:
    """Refuse a division into processes and micro-batches that cannot be."""
    if world_size < 1 or not 0 <= rank < world_size:
        raise ValueError(f"rank ({rank}) must be in 0..world_size-1 (world_size is {world_size})")
    if num_micro < 1:
        raise ValueError(f"num_micro ({num_micro}) must be at least 1")
    if batch_size < world_size * num_micro:
        raise ValueError(
            f"batch_size ({batch_size}) must be at least world_size x num_micro "
            f"({world_size} x {num_micro}): every process needs a sample in every micro-batch"
        )
