"""Batches at explicit positions: the batch of any optimizer step is computed from the step alone.

The order of an epoch is a pure function of (seed, epoch); a step's global batch is a contiguous
piece of it, cut into micro-batches, each cut into the processes' slices. Nothing here is state:
resuming a run needs its step and nothing else, with any number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

import numpy as np
import torch
from numpy.typing import NDArray

from bitcycle.data.batch import Batch, Key, Samples, check_position, slice_bounds
from bitcycle.data.counter import permutation
from bitcycle.data.prefetch import in_order


class Batches:
    """Shuffled, augmented training batches of one process.

    `batch_size` is that of an optimizer step over all processes and micro-batches: the union over
    ranks of step s is the single-process batch of step s, in the same order.
    """

    def __init__(
        self,
        samples: Samples,
        *,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        num_micro: int = 1,
        drop_last: bool = False,
        is_augmented: bool = True,
    ) -> None:
        check_position(rank=rank, world_size=world_size, batch_size=batch_size, num_micro=num_micro)
        self.samples = samples
        self.batch_size = batch_size
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.num_micro = num_micro
        self.is_augmented = is_augmented
        whole, tail = divmod(len(samples), batch_size)
        self.steps_per_epoch = whole if drop_last else whole + (tail > 0)
        if self.steps_per_epoch == 0:
            raise ValueError(
                f"{len(samples)} samples make no whole batch of {batch_size}: "
                "use a smaller batch_size or drop_last=False"
            )
        if not drop_last and 0 < tail < world_size * num_micro:
            raise ValueError(
                f"the last batch of an epoch has {tail} of {batch_size} samples, too few for "
                f"{world_size} processes x {num_micro} micro-batches: use another batch_size, "
                "or drop_last=True"
            )
        self._orders: dict[int, NDArray[np.int64]] = {}

    def indices_at(self, step: int) -> NDArray[np.int64]:
        """The samples of the global batch of optimizer step `step` (0-based), in order."""
        if step < 0:
            raise ValueError(f"step ({step}) must not be negative")
        epoch, position = divmod(step, self.steps_per_epoch)
        start = position * self.batch_size
        return self._order(epoch)[start : start + self.batch_size]

    def batch_at(self, step: int, micro: int = 0) -> Batch:
        """This process's part of micro-batch `micro` of optimizer step `step`."""
        if not 0 <= micro < self.num_micro:
            raise ValueError(f"micro ({micro}) must be in 0..{self.num_micro - 1}")
        all_indices = self.indices_at(step)
        num_slices, slice_number = self.num_micro * self.world_size, micro * self.world_size
        start, stop = slice_bounds(len(all_indices), num_slices, slice_number + self.rank)
        indices = all_indices[start:stop]
        epoch = step // self.steps_per_epoch
        key = Key(self.seed, epoch) if self.is_augmented else None
        inputs, targets = self.samples.fetch(indices, key)
        return Batch(
            inputs=inputs,
            targets=targets,
            indices=torch.from_numpy(indices.copy()),
            step=step,
            epoch=epoch,
            micro=micro,
            share=(stop - start) / len(all_indices),
        )

    def from_step(self, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        """Every micro-batch of the steps start ... stop - 1, for ever without a stop."""

        def jobs() -> Iterator[Callable[[], Batch]]:
            for step in count(start) if stop is None else range(start, stop):
                for micro in range(self.num_micro):
                    yield partial(self.batch_at, step, micro)

        return in_order(jobs(), depth=self.samples.num_prefetch)

    def _order(self, epoch: int) -> NDArray[np.int64]:
        known = self._orders  # replaced as a whole, never changed: threads that prefetch read it
        order = known.get(epoch)
        if order is None:
            order = permutation(len(self.samples), self.seed, epoch=epoch)
            # the neighbour is kept: batches prepared ahead straddle the border of two epochs
            self._orders = {e: o for e, o in known.items() if abs(e - epoch) == 1} | {epoch: order}
        return order


class OnePass:
    """Every sample once, in order, un-augmented, last partial batch included; iterable repeatedly.

    For evaluation, and for whatever else wants plain training data (ranges and norm statistics of
    averaged weights, landscapes). With several processes each takes whole batches (rank, rank +
    world_size, ...), the very batches a single process would see, so summed metrics are the same;
    their numbers may differ by one, so nothing inside the pass may wait for other processes.
    """

    def __init__(
        self, samples: Samples, *, batch_size: int, rank: int = 0, world_size: int = 1
    ) -> None:
        check_position(rank=rank, world_size=world_size, batch_size=max(batch_size, world_size))
        if batch_size < 1:
            raise ValueError(f"batch_size ({batch_size}) must be at least 1")
        self.samples = samples
        self.batch_size = batch_size
        self._starts = range(0, len(samples), batch_size)[rank::world_size]

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[Batch]:
        jobs = (partial(self._batch_from, start) for start in self._starts)
        return in_order(jobs, depth=self.samples.num_prefetch)

    def _batch_from(self, start: int) -> Batch:
        total = len(self.samples)
        indices = np.arange(start, min(start + self.batch_size, total))
        inputs, targets = self.samples.fetch(indices, None)
        return Batch(
            inputs=inputs,
            targets=targets,
            indices=torch.from_numpy(indices),
            step=start // self.batch_size,
            share=len(indices) / total,
        )
