"""Memory layout: flat and row views of tensors, and results in the layout of the input."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bitcycle.ops.noise import element_index


def element_numbers(x: Tensor) -> Tensor:
    """The number of every element, which its noise depends on.

    In memory order for channels-last tensors, where row-major numbers would make a pass three times
    slower; else row-major.
    """
    if x.is_contiguous() or not is_channels_last(x):
        return element_index(x.shape, x.device)
    batch, channels, *space = x.shape
    return element_index((batch, *space, channels), x.device).movedim(-1, 1)


def is_channels_last(x: Tensor) -> bool:
    """Whether a 4-D or 5-D tensor is contiguous in the channels-last format."""
    if x.dim() == 4:
        return x.is_contiguous(memory_format=torch.channels_last)
    return x.dim() == 5 and x.is_contiguous(memory_format=torch.channels_last_3d)


def is_numbered_in_memory_order(x: Tensor) -> bool:
    """Whether the `element_numbers` of a tensor count along its memory."""
    return x.is_contiguous() or is_channels_last(x)


def memory_layout(x: Tensor) -> torch.memory_format:
    """The memory format: channels-last for such a tensor that is not also contiguous."""
    if x.is_contiguous() or not is_channels_last(x):
        return torch.contiguous_format
    return torch.channels_last if x.dim() == 4 else torch.channels_last_3d


def _memory_order(x: Tensor) -> Tensor:
    """The tensor with its dimensions from the outermost in memory to the innermost."""
    strides = x.stride()
    return x.permute(sorted(range(x.dim()), key=lambda d: (-strides[d], -x.shape[d])))


def is_dense(x: Tensor) -> bool:
    """Whether the elements are contiguous in memory in some order of dimensions."""
    return x.is_contiguous() or is_channels_last(x) or _memory_order(x).is_contiguous()


def as_dense(x: Tensor) -> Tensor:
    """The tensor, or a contiguous copy if it has gaps."""
    return x if is_dense(x) else x.contiguous()


def has_outer_rows(x: Tensor) -> bool:
    """Whether the first dimension is the outermost in memory: each row is contiguous."""
    if x.is_contiguous() or is_channels_last(x):
        return True
    return is_dense(x) and x.stride(0) == max(x.stride())


def flat(x: Tensor) -> Tensor:
    """All elements in one dimension, in memory order; a view unless `x` has gaps."""
    if x.is_contiguous():
        return x.view(-1)
    ordered = _memory_order(x)
    return ordered.view(-1) if ordered.is_contiguous() else x.contiguous().view(-1)


def flat_stride(x: Tensor) -> tuple[int, ...]:
    """The stride of a dense tensor of this shape whose elements lie in the order of `flat(x)`.

    >>> flat_stride(torch.empty(2, 6)[:, ::2]), flat_stride(torch.empty(3, 2).t())
    ((3, 1), (1, 2))
    """
    return x.stride() if is_dense(x) else torch.empty(x.shape, device="meta").stride()


def rows(x: Tensor) -> Tensor:
    """(rows, everything else); a view if each row is contiguous."""
    x = x if has_outer_rows(x) else x.contiguous()
    return flat(x).view(x.shape[0], math.prod(x.shape[1:]))


def like(dense: Tensor, x: Tensor) -> Tensor:
    """A flat result with the shape of `x` and, unless `x` has gaps, its layout."""
    if x.is_contiguous() or not is_dense(x):
        return dense.view(x.shape)
    return dense.as_strided(x.shape, x.stride())


def with_stride(x: Tensor, stride: tuple[int, ...]) -> Tensor:
    """The tensor with this stride, if only dimensions of one element make a difference.

    >>> x = torch.empty_strided((4, 1, 3), (3, 1, 1))
    >>> with_stride(x, (3, 3, 1)).stride(), with_stride(x, (1, 4, 4)).stride()
    ((3, 3, 1), (3, 1, 1))
    """
    if x.stride() == stride:
        return x
    fits = all(n == 1 or a == b for n, a, b in zip(x.shape, x.stride(), stride, strict=True))
    return x.as_strided(x.shape, stride) if fits else x


def in_layout_of(x: Tensor, result: Tensor) -> Tensor:
    """A contiguous result of the same shape, copied to the layout of `x` unless that has gaps."""
    return torch.empty_like(x, dtype=result.dtype).copy_(result) if is_dense(x) else result
