"""The affine min-max grid: value = scale * code + offset, code in 0..levels.

One reduction finds a range, one elementwise pass rounds to the grid. Level counts, scales and
offsets are tensors, so changing the bits changes data and never a compiled graph.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bitcycle.ops.fused import Fused
from bitcycle.ops.noise import element_index, uniform


def value_range(x: Tensor, keep: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
    """Minimum and maximum over all dimensions but `keep` (those stay, the others become 1).

    >>> value_range(torch.tensor([[1.0, 2.0], [3.0, 5.0]]), keep=(0,))[1]
    tensor([[2.],
            [5.]])
    """
    if x.numel() == 0:
        shape = [n if d in keep else 1 for d, n in enumerate(x.shape)] if keep else []
        empty = x.new_zeros(shape)
        return empty, empty.clone()
    if not keep:
        # aminmax copies what is not contiguous; memory order does not matter to a minimum
        low, high = torch.aminmax(x if torch.compiler.is_compiling() else _flat(x))
        return low, high
    if keep == (0,):
        low, high = torch.aminmax(_rows(x), dim=1)
        shape = [x.shape[0]] + [1] * (x.dim() - 1)
        return low.view(shape), high.view(shape)
    drop = tuple(d for d in range(x.dim()) if d not in keep)
    return x.amin(dim=drop, keepdim=True), x.amax(dim=drop, keepdim=True)


def grid_step(low: Tensor, high: Tensor, levels: Tensor, floor: float = 0.0) -> Tensor:
    """s = (high - low) / levels; 1 for a range of 0, so that a constant reproduces itself."""
    step = (high - low) / levels
    if floor > 0:
        step = step.clamp_min(floor)
    return torch.where(step == 0, 1.0, step)


def _nearest(x: Tensor, scale: Tensor, offset: Tensor, levels: Tensor) -> Tensor:
    u = (x - offset) / scale
    q = torch.minimum(u.clamp_min(0.0), levels).round()
    return q * scale + offset


def _stochastic(
    x: Tensor, scale: Tensor, offset: Tensor, levels: Tensor, index: Tensor, key: Tensor
) -> Tensor:
    u = (x - offset) / scale + uniform(index, key)
    q = torch.minimum(u.clamp_min(0.0), levels).round()
    return q * scale + offset


def _stochastic_flat(
    x: Tensor, scale: Tensor, offset: Tensor, levels: Tensor, key: Tensor
) -> Tensor:
    return _stochastic(x, scale, offset, levels, element_index(x.shape, x.device), key)


_fused_nearest = Fused(_nearest)
_fused_stochastic_flat = Fused(_stochastic_flat)


def round_nearest(x: Tensor, scale: Tensor, offset: Tensor, levels: Tensor) -> Tensor:
    """x^ = rint(clamp((x - offset) / scale, 0, levels)) * scale + offset, half to even.

    >>> x = torch.tensor([-1.0, -0.4, 0.1, 0.7, 2.0])
    >>> round_nearest(x, torch.tensor(3 / 7), torch.tensor(-1.0), torch.tensor(7.0))
    tensor([-1.0000, -0.5714,  0.2857,  0.7143,  2.0000])
    """
    if torch.compiler.is_compiling():
        return _nearest(x, scale, offset, levels)
    if scale.dim() == 0:
        return _like(_fused_nearest(_flat(x), scale, offset, levels), x)
    if _is_per_row(scale, x) and _has_outer_rows(x):
        rows = _fused_nearest(_rows(x), scale.view(-1, 1), offset.view(-1, 1), levels)
        return _like(rows, x)
    return _nearest(x, scale, offset, levels)


def round_stochastic(
    x: Tensor, scale: Tensor, offset: Tensor, levels: Tensor, key: Tensor
) -> Tensor:
    """As `round_nearest` with U(-1/2, 1/2) added before the clamp: unbiased inside the range."""
    if torch.compiler.is_compiling() or scale.dim() > 0:
        return _stochastic(x, scale, offset, levels, _numbers(x), key)
    if x.is_contiguous() or _is_channels_last(x):
        return _like(_fused_stochastic_flat(_flat(x), scale, offset, levels, key), x)
    result = round_stochastic(x.contiguous(), scale, offset, levels, key)
    return torch.empty_like(x).copy_(result) if _is_dense(x) else result


def _numbers(x: Tensor) -> Tensor:
    """The number of every element: in memory order where channels are last, else row-major.

    Numbering channels-last tensors row-major would make the fused pass three times slower.
    """
    if x.is_contiguous() or not _is_channels_last(x):
        return element_index(x.shape, x.device)
    batch, channels, *space = x.shape
    return element_index((batch, *space, channels), x.device).movedim(-1, 1)


def _is_channels_last(x: Tensor) -> bool:
    if x.dim() == 4:
        return x.is_contiguous(memory_format=torch.channels_last)
    return x.dim() == 5 and x.is_contiguous(memory_format=torch.channels_last_3d)


def _memory_order(x: Tensor) -> Tensor:
    """The tensor with its dimensions from the outermost in memory to the innermost."""
    strides = x.stride()
    return x.permute(sorted(range(x.dim()), key=lambda d: (-strides[d], -x.shape[d])))


def _is_dense(x: Tensor) -> bool:
    """Whether the elements fill a stretch of memory, in whatever order of dimensions."""
    return x.is_contiguous() or _memory_order(x).is_contiguous()


def _has_outer_rows(x: Tensor) -> bool:
    """Whether the first dimension is the outermost in memory, so that rows are stretches of it."""
    return x.is_contiguous() or (_is_dense(x) and x.stride(0) == max(x.stride()))


def _flat(x: Tensor) -> Tensor:
    """All elements as one dense dimension, in memory order; a view unless `x` has gaps."""
    if x.is_contiguous():
        return x.view(-1)
    ordered = _memory_order(x)
    return ordered.view(-1) if ordered.is_contiguous() else x.contiguous().view(-1)


def _rows(x: Tensor) -> Tensor:
    """(rows, everything else); a view if the rows are stretches of memory."""
    x = x if _has_outer_rows(x) else x.contiguous()
    return _flat(x).view(x.shape[0], math.prod(x.shape[1:]))


def _is_per_row(scale: Tensor, x: Tensor) -> bool:
    return scale.dim() == x.dim() and scale.shape[0] == x.shape[0] == scale.numel()


def _like(dense: Tensor, x: Tensor) -> Tensor:
    """A result in memory order, with the shape of `x` and, unless that has gaps, its layout."""
    if x.is_contiguous() or not _is_dense(x):
        return dense.view(x.shape)
    return dense.as_strided(x.shape, x.stride())
