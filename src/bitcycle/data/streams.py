"""Text as parallel streams for a recurrent net: windows of `bptt` words that follow each other.

The text is cut into `batch_size` columns of equal length; step s of an epoch is rows
s * bptt ... (s + 1) * bptt of all columns. Inputs are the words, targets the words that follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import torch
from torch import Tensor

from bitcycle.data.batch import IGNORE, Batch, check_position, slice_bounds


class Streams:
    """Training windows (bptt, columns) at explicit positions; the last words that do not fill a row
    of all columns are left out, the last window of an epoch may be shorter.

    Processes and micro-batches divide the columns. State goes from a batch to the next one of the
    same micro-batch number, and starts anew where `starts_stream` is set: at every epoch's start.
    """

    def __init__(
        self,
        tokens: Tensor,
        *,
        batch_size: int,
        bptt: int,
        rank: int = 0,
        world_size: int = 1,
        num_micro: int = 1,
    ) -> None:
        check_position(rank=rank, world_size=world_size, batch_size=batch_size, num_micro=num_micro)
        _check_bptt(bptt)
        num_rows = (len(tokens) - 1) // batch_size
        if num_rows < 1:
            raise ValueError(
                f"{len(tokens)} words are too few for {batch_size} streams: "
                "use a smaller batch_size"
            )
        used = num_rows * batch_size
        self.batch_size, self.bptt, self.num_micro = batch_size, bptt, num_micro
        self.rank, self.world_size = rank, world_size
        self._inputs = tokens[:used].view(batch_size, num_rows).t()  # (rows, columns)
        self._targets = tokens[1 : used + 1].view(batch_size, num_rows).t()
        self.steps_per_epoch = -(-num_rows // bptt)

    def batch_at(self, step: int, micro: int = 0) -> Batch:
        """This process's columns of micro-batch `micro` of optimizer step `step` (0-based)."""
        if step < 0:
            raise ValueError(f"step ({step}) must not be negative")
        if not 0 <= micro < self.num_micro:
            raise ValueError(f"micro ({micro}) must be in 0..{self.num_micro - 1}")
        epoch, position = divmod(step, self.steps_per_epoch)
        num_slices, slice_number = self.num_micro * self.world_size, micro * self.world_size
        start, stop = slice_bounds(self.batch_size, num_slices, slice_number + self.rank)
        rows = slice(position * self.bptt, (position + 1) * self.bptt)
        return Batch(
            inputs=self._inputs[rows, start:stop].long().contiguous(),
            targets=self._targets[rows, start:stop].long().contiguous(),
            step=step,
            epoch=epoch,
            micro=micro,
            share=(stop - start) / self.batch_size,
            starts_stream=position == 0,
        )

    def from_step(self, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        """Every micro-batch of the steps start ... stop - 1, for ever without a stop."""
        for step in count(start) if stop is None else range(start, stop):
            for micro in range(self.num_micro):
                yield self.batch_at(step, micro)


class StreamPass:
    """Every word predicted exactly once (but the first), for evaluation; iterable repeatedly.

    Columns are filled up at the end with the target IGNORE, so no word is left out. Processes
    divide the columns; one that gets no column has no batches.
    """

    def __init__(
        self, tokens: Tensor, *, batch_size: int, bptt: int, rank: int = 0, world_size: int = 1
    ) -> None:
        check_position(rank=rank, world_size=world_size, batch_size=max(batch_size, world_size))
        _check_bptt(bptt)
        num_targets = len(tokens) - 1
        if batch_size < 1 or num_targets < 1:
            raise ValueError(f"no stream to make: {len(tokens)} words, batch_size {batch_size}")
        num_rows = -(-num_targets // batch_size)
        inputs = tokens.new_zeros(num_rows * batch_size)
        targets = torch.full_like(inputs, IGNORE)
        inputs[:num_targets], targets[:num_targets] = tokens[:-1], tokens[1:]
        start, stop = slice_bounds(batch_size, world_size, rank)
        self.bptt = bptt
        self._num_targets = num_targets
        self._inputs = inputs.view(batch_size, num_rows)[start:stop].t()  # (rows, columns)
        self._targets = targets.view(batch_size, num_rows)[start:stop].t()

    def __len__(self) -> int:
        num_rows, num_columns = self._inputs.shape
        return -(-num_rows // self.bptt) if num_columns else 0

    def __iter__(self) -> Iterator[Batch]:
        for step in range(len(self)):
            rows = slice(step * self.bptt, (step + 1) * self.bptt)
            targets = self._targets[rows].long().contiguous()
            yield Batch(
                inputs=self._inputs[rows].long().contiguous(),
                targets=targets,
                step=step,
                share=int((targets != IGNORE).sum()) / self._num_targets,
                starts_stream=step == 0,
            )


def _check_bptt(bptt: int) -> None:
    if bptt < 1:
        raise ValueError(f"bptt ({bptt}) must be at least 1")
