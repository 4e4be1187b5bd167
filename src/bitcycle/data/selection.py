"""Fixed choices among training samples: a smaller training set, a held-out validation set."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bitcycle.data.batch import Key, Samples
from bitcycle.data.counter import Purpose, permutation


@dataclass(frozen=True, eq=False)
class Selection:
    """Some of the samples of `base`, in the order of `chosen`; augmented as they are there."""

    base: Samples
    chosen: NDArray[np.int64]

    @property
    def num_prefetch(self) -> int:
        """As the base says."""
        return self.base.num_prefetch

    def __len__(self) -> int:
        return len(self.chosen)

    def fetch(self, indices: NDArray[np.int64], key: Key | None) -> tuple[Tensor, Tensor]:
        """Fetched from the base by the base's indices."""
        return self.base.fetch(self.chosen[indices], key)

    def to(self, device: torch.device | str) -> Selection:
        """The same selection from the base on `device`."""
        return replace(self, base=self.base.to(device))


def select(
    samples: Samples,
    *,
    subset: int | float | None = None,
    validation: int | float | None = None,
    seed: int = 0,
) -> tuple[Samples, Samples | None]:
    """Training and validation samples out of a training set.

    An int is a number of samples, a float a fraction: first `validation` of all samples are held
    out, then `subset` of the remaining ones are kept. Each choice is a pure function of the seed;
    chosen samples keep their order. Without a request the samples come back as they are.
    """
    training: Samples = samples
    held_out: Samples | None = None
    remaining = np.arange(len(samples))
    if validation is not None:
        number = _number("validation", validation, len(remaining))
        order = permutation(len(samples), seed, purpose=Purpose.HOLD_OUT)
        held_out = Selection(samples, np.sort(order[:number]))
        remaining = np.sort(order[number:])
        if len(remaining) == 0:
            raise ValueError(
                f"validation ({validation}) leaves none of {len(samples)} samples to train on"
            )
        training = Selection(samples, remaining)
    if subset is not None:
        number = _number("subset", subset, len(remaining))
        order = permutation(len(remaining), seed, purpose=Purpose.SUBSET)
        training = Selection(samples, remaining[np.sort(order[:number])])
    return training, held_out


def _number(name: str, request: int | float, available: int) -> int:
    if isinstance(request, bool):
        raise ValueError(f"{name} must be a number of samples or a fraction, not {request}")
    number = round(request * available) if isinstance(request, float) else request
    if isinstance(request, float) and not 0 < request <= 1:
        raise ValueError(f"{name} ({request}) as a fraction must be above 0 and at most 1")
    if not 1 <= number <= available:
        raise ValueError(f"{name} ({request}) must choose 1..{available} samples, not {number}")
    return number
