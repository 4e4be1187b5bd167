"""Samples that are two tensors: for data of one's own that fits in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bitcycle.data.batch import Key


@dataclass(frozen=True, eq=False)
class Tensors:
    """Sample i is inputs[i] and targets[i], as they are; there is no augmentation.

    >>> samples = Tensors(torch.arange(6.0).view(3, 2), torch.tensor([10.0, 20.0, 30.0]))
    >>> inputs, targets = samples.fetch(np.array([2, 0]), None)
    >>> inputs.tolist(), targets.tolist()
    ([[4.0, 5.0], [0.0, 1.0]], [30.0, 10.0])
    """

    inputs: Tensor
    targets: Tensor

    num_prefetch = 0

    def __post_init__(self) -> None:
        if not (self.inputs.dim() and self.targets.dim()) or len(self.inputs) != len(self.targets):
            raise ValueError(
                f"inputs {tuple(self.inputs.shape)} and targets {tuple(self.targets.shape)} must "
                "have one entry per sample each"
            )

    def __len__(self) -> int:
        return len(self.inputs)

    def fetch(self, indices: NDArray[np.int64], key: Key | None) -> tuple[Tensor, Tensor]:
        """Those samples, in that order."""
        chosen = torch.from_numpy(np.ascontiguousarray(indices)).to(self.inputs.device)
        return self.inputs.index_select(0, chosen), self.targets.index_select(0, chosen)

    def to(self, device: torch.device | str) -> Tensors:
        """The same samples on `device`."""
        return replace(self, inputs=self.inputs.to(device), targets=self.targets.to(device))
