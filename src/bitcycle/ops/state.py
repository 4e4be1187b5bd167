"""Small updates of a layer's buffers: its clock, its flags of nonfinite ranges, its running ranges.

Each is one call of the native library or of a GPU kernel where that takes several operations of
torch, at a layer's every step. The library does not count a write in the tensor's version.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bitcycle.native import encode as native
from bitcycle.ops.fused import grids_for


def count_up(numbers: Tensor, place: int) -> Tensor:
    """Add 1 to one of several int32 numbers in place; returns a copy of all.

    >>> clock = torch.tensor([7, 0], dtype=torch.int32)
    >>> count_up(clock, 1), clock
    (tensor([7, 1], dtype=torch.int32), tensor([7, 1], dtype=torch.int32))
    """
    fused: Any = (
        native if native.is_available(numbers, torch.int32) else grids_for(numbers, torch.int32)
    )
    copy: Tensor | None = (
        fused.count_up(numbers, place) if fused and numbers.is_contiguous() else None
    )
    if copy is not None:
        return copy
    numbers[place].add_(1)
    return numbers.clone()


def flag_nonfinite(flags: Tensor, place: int, low: Tensor, high: Tensor) -> None:
    """Turn one of several flags NaN if a range is not finite, without reading the device.

    >>> flags = torch.zeros(2)
    >>> flag_nonfinite(flags, 1, torch.tensor(0.0), torch.tensor(float("inf")))
    >>> flags
    tensor([0., nan])
    """
    fused: Any = (
        native if native.is_available(flags, torch.float32) else grids_for(flags, torch.float32)
    )
    if (
        fused
        and flags.is_contiguous()
        and _is_range(flags, low, high)
        and fused.flag_nonfinite(flags, place, low, high) is not False
    ):
        return
    spread = high - low
    flags[place].add_(spread if spread.dim() == 0 else spread.sum(), alpha=0)


def observe(
    rows: Tensor,
    place: int,
    low: Tensor,
    high: Tensor,
    momentum: float | None,
    flags: Tensor | None = None,
    flag: int = 0,
) -> None:
    """Update a row [observations, lowest value, range] by a new range, unless it is not finite.

    momentum: the weight of a range after the first; None takes the mean of all. flags: those of
    `flag_nonfinite`, of which one turns NaN if the range is not finite.

    >>> rows = torch.zeros(1, 3)
    >>> for high in (1.0, 2.0):
    ...     observe(rows, 0, torch.tensor(0.0), torch.tensor(high), 0.1)
    >>> rows
    tensor([[2.0000, 0.0000, 1.1000]])
    """
    fused: Any = (
        native if native.is_available(rows, torch.float32) else grids_for(rows, torch.float32)
    )
    if (
        fused
        and rows.is_contiguous()
        and _is_range(rows, low, high)
        and fused.observe(rows, place, low, high, momentum or 0.0, flags, flag) is not False
    ):
        return
    if flags is not None:
        flag_nonfinite(flags, flag, low, high)
    _observe(rows[place], low, high, momentum)


def _is_range(buffer: Tensor, low: Tensor, high: Tensor) -> bool:
    """Whether both ends, which are not watched if the buffer is not, can be read as they are."""
    is_float = low.dtype is torch.float32 and high.dtype is torch.float32
    is_same = low.numel() == high.numel() and low.is_cpu == high.is_cpu == buffer.is_cpu
    return is_float and is_same and low.is_contiguous() and high.is_contiguous()


def _observe(row: Tensor, low: Tensor, high: Tensor, momentum: float | None) -> None:
    count = row[:1] + 1
    share = 1 / count if momentum is None else torch.where(count > 1, momentum, 1.0)
    new = torch.stack([low, high - low]).to(row.dtype)
    # not torch.lerp: that rounds once or twice, by the processor
    updated = torch.cat([count, row[1:] + share * (new - row[1:])])
    row.copy_(torch.where(torch.isfinite(new[1]), updated, row))
