"""Samples and batches: the batch of an optimizer step is a pure function of the step.

The order of an epoch depends on (seed, epoch) only. The global batch of a step is a contiguous
slice of it, divided into micro-batches and each of those among the ranks. There is no state: a
resumed run needs its step and nothing else, with any number of workers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bitcycle_lab.data.counter import Purpose, permutation

"""The target that losses and metrics skip: `ignore_index` of cross-entropy."""

IGNORE = -100
T = TypeVar("T")
S = TypeVar("S", bound="Samples")


class Key(NamedTuple):
    """Seed and epoch of an augmentation; the third part of its key is the sample's index."""

    seed: int
    epoch: int


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One micro-batch of one rank.

    `share` is its fraction of the step's targets. The shares of all micro-batches and ranks add up
    to 1, so the sum of `mean_loss * share` is the mean loss of the step even if slices are uneven.
    (DDP averages over ranks: multiply by their number.)
    """

    inputs: Tensor
    targets: Tensor
    indices: Tensor | None = None
    step: int = 0
    epoch: int = 0
    micro: int = 0
    share: float = 1.0
    starts_stream: bool = False
    """Language streams: reset the recurrent state before this batch."""

    @property
    def num_targets(self) -> int:
        """The number of targets: samples, or tokens without padding."""
        if self.targets.dim() == 1:
            return len(self.targets)
        return int((self.targets != IGNORE).sum())

    def to(self, device: torch.device | str) -> Batch:
        """The same batch with inputs and targets on `device`."""
        inputs, targets = upload(self.inputs, device), upload(self.targets, device)
        return replace(self, inputs=inputs, targets=targets)


def upload(x: Tensor, device: torch.device | str) -> Tensor:
    """The tensor on `device`; a GPU takes it from pinned memory, so that the host does not wait."""
    if x.device.type == "cpu" and torch.device(device).type == "cuda":
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)


@runtime_checkable
class Samples(Protocol):
    """Samples that are fetched by index, augmented or not."""

    @property
    def num_prefetch(self) -> int:
        """The number of batches to prepare ahead; 0 if a fetch is cheap."""
        ...

    def __len__(self) -> int: ...

    def fetch(self, indices: NDArray[np.int64], key: Key | None) -> tuple[Tensor, Tensor]:
        """Inputs and targets of these samples; not augmented if `key` is None."""
        ...

    def to(self: S, device: torch.device | str) -> S:
        """The same samples, fetched onto `device`."""
        ...


@dataclass(frozen=True, eq=False)
class Tensors:
    """Samples from two tensors: sample i is inputs[i] and targets[i], without augmentation.

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
        """Inputs and targets of these samples."""
        chosen = upload(torch.from_numpy(np.ascontiguousarray(indices)), self.inputs.device)
        return self.inputs.index_select(0, chosen), self.targets.index_select(0, chosen)

    def to(self, device: torch.device | str) -> Tensors:
        """The same samples on `device`."""
        return replace(self, inputs=self.inputs.to(device), targets=self.targets.to(device))


@dataclass(frozen=True, eq=False)
class Selection:
    """The samples `chosen` of `base`, in that order; `base` augments them."""

    base: Samples
    chosen: NDArray[np.int64]

    @property
    def num_prefetch(self) -> int:
        """Return the number of the base."""
        return self.base.num_prefetch

    def __len__(self) -> int:
        return len(self.chosen)

    def fetch(self, indices: NDArray[np.int64], key: Key | None) -> tuple[Tensor, Tensor]:
        """Inputs and targets of these samples of the base."""
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
    """Split a training set into training and validation samples.

    `validation` samples are held out first, then `subset` of the remaining ones are kept. An int is
    a number of samples, a float a fraction. The choice depends on the seed only and keeps the
    order of samples. Without either, the samples are returned unchanged.
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


def count_selected(
    available: int, *, subset: int | float | None = None, validation: int | float | None = None
) -> int:
    """The number of training samples that `select` returns.

    >>> count_selected(1437, subset=0.5, validation=37)
    700
    """
    left = (
        available
        if validation is None
        else available - _number("validation", validation, available)
    )
    return left if subset is None else _number("subset", subset, left)


def _number(name: str, request: int | float, available: int) -> int:
    if isinstance(request, bool):
        raise ValueError(f"{name} must be a number of samples or a fraction, not {request}")
    number = round(request * available) if isinstance(request, float) else request
    if isinstance(request, float) and not 0 < request <= 1:
        raise ValueError(f"{name} ({request}) as a fraction must be above 0 and at most 1")
    if not 1 <= number <= available:
        raise ValueError(f"{name} ({request}) must choose 1..{available} samples, not {number}")
    return number


class StepBatches:
    """Training batches by step, divided into micro-batches and among ranks."""

    num_prefetch = 0

    def __init__(self, *, batch_size: int, rank: int, world_size: int, num_micro: int) -> None:
        check_position(rank=rank, world_size=world_size, batch_size=batch_size, num_micro=num_micro)
        self.batch_size = batch_size
        self.rank = rank
        self.world_size = world_size
        self.num_micro = num_micro

    def batch_at(self, step: int, micro: int = 0) -> Batch:
        """This rank's part of micro-batch `micro` of a step (0-based)."""
        raise NotImplementedError

    def from_step(self, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        """Every micro-batch of the steps start ... stop - 1; endless without `stop`."""

        def jobs() -> Iterator[Callable[[], Batch]]:
            for step in count(start) if stop is None else range(start, stop):
                for micro in range(self.num_micro):
                    yield partial(self.batch_at, step, micro)

        return in_order(jobs(), depth=self.num_prefetch)

    def slice_of(self, length: int, step: int, micro: int) -> tuple[int, int]:
        """Start and end of this rank's part of `length` samples in a micro-batch."""
        if step < 0:
            raise ValueError(f"step ({step}) must not be negative")
        if not 0 <= micro < self.num_micro:
            raise ValueError(f"micro ({micro}) must be in 0..{self.num_micro - 1}")
        part = micro * self.world_size + self.rank
        return slice_bounds(length, self.num_micro * self.world_size, part)


class Batches(StepBatches):
    """Shuffled, augmented training batches of one rank.

    `batch_size` is the size of an optimizer step over all ranks and micro-batches. The batches of
    all ranks at step s, in order, are the batch of a single process at step s.
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
        super().__init__(
            batch_size=batch_size, rank=rank, world_size=world_size, num_micro=num_micro
        )
        self.samples = samples
        self.num_prefetch = samples.num_prefetch
        self.seed = seed
        self.is_augmented = is_augmented
        whole, tail = divmod(len(samples), batch_size)
        self.steps_per_epoch = whole if drop_last else whole + (tail > 0)
        if self.steps_per_epoch == 0:
            raise ValueError(f"{len(samples)} samples make no whole batch of {batch_size}")
        if not drop_last and 0 < tail < world_size * num_micro:
            raise ValueError(
                f"the last batch of an epoch has {tail} samples for {world_size} processes x "
                f"{num_micro} micro-batches; drop_last=True leaves it out"
            )
        self._orders: dict[int, NDArray[np.int64]] = {}

    def indices_at(self, step: int) -> NDArray[np.int64]:
        """The indices of the global batch of a step (0-based), in order."""
        if step < 0:
            raise ValueError(f"step ({step}) must not be negative")
        epoch, position = divmod(step, self.steps_per_epoch)
        start = position * self.batch_size
        return self._order(epoch)[start : start + self.batch_size]

    def batch_at(self, step: int, micro: int = 0) -> Batch:
        """This rank's part of micro-batch `micro` of a step."""
        all_indices = self.indices_at(step)
        start, stop = self.slice_of(len(all_indices), step, micro)
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

    def _order(self, epoch: int) -> NDArray[np.int64]:
        known = self._orders  # never changed in place: prefetching threads read it
        order = known.get(epoch)
        if order is None:
            order = permutation(len(self.samples), self.seed, epoch=epoch)
            # keep the neighbouring epoch: batches are prepared ahead across its border
            self._orders = {e: o for e, o in known.items() if abs(e - epoch) == 1} | {epoch: order}
        return order


class OnePass:
    """Every sample once, in order and without augmentation, for evaluation; can be iterated again.

    Each rank takes every `world_size`-th batch of a single process, so that summed metrics are
    equal. Ranks may have one batch more or less: do not synchronize ranks inside the loop.
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


def check_position(*, rank: int, world_size: int, batch_size: int, num_micro: int = 1) -> None:
    """Raise ValueError if a batch cannot be divided among these ranks and micro-batches."""
    if world_size < 1 or not 0 <= rank < world_size:
        raise ValueError(f"rank ({rank}) must be in 0..world_size-1 (world_size is {world_size})")
    if num_micro < 1:
        raise ValueError(f"num_micro ({num_micro}) must be at least 1")
    if batch_size < world_size * num_micro:
        raise ValueError(
            f"batch_size ({batch_size}) must be at least world_size x num_micro "
            f"({world_size} x {num_micro})"
        )


def slice_bounds(length: int, num_parts: int, part: int) -> tuple[int, int]:
    """Start and end of slice `part` when `length` items are divided into `num_parts`.

    >>> [slice_bounds(10, 4, part) for part in range(4)]
    [(0, 2), (2, 5), (5, 7), (7, 10)]
    """
    return length * part // num_parts, length * (part + 1) // num_parts


def in_order(jobs: Iterable[Callable[[], T]], *, depth: int) -> Iterator[T]:
    """Yield the results of jobs in their order and compute up to `depth` of them ahead in threads.

    With `depth=0` each job runs when its result is needed. A job's error is raised in its turn.

    >>> list(in_order([lambda: "a", lambda: "b"], depth=4))
    ['a', 'b']
    """
    if depth == 0:
        for job in jobs:
            yield job()
        return
    pool = ThreadPoolExecutor(max_workers=depth, thread_name_prefix="bitcycle-prefetch")
    pending: deque[Future[T]] = deque()
    try:
        for job in jobs:
            pending.append(pool.submit(job))
            if len(pending) > depth:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:  # also when the consumer stops early
        pool.shutdown(wait=True, cancel_futures=True)
