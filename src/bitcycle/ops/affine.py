"""Ranges, and rounding to an affine grid: value = scale * code + offset, code in 0..levels.

`value_range` is one reduction, `round_nearest` and `round_stochastic` one elementwise pass of the
native library or of a GPU kernel, or the same to the last bit in plain torch. Level counts, scales
and offsets are tensors: new bits change data, never a compiled graph.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from bitcycle.gpu.driver import FLOATS
from bitcycle.native.encode import OnGrid
from bitcycle.native.encode import Rule as Rule
from bitcycle.ops.fused import encoder_for
from bitcycle.ops.layout import (
    as_dense,
    element_numbers,
    flat,
    in_layout_of,
    is_numbered_in_memory_order,
    rows,
)
from bitcycle.ops.noise import uniform

MIN_ELEMENTS = 1 << 14  # below this torch's aminmax is faster than the call of a library


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
    if len(keep) == 1 or (not keep and x.is_cpu and x.numel() >= MIN_ELEMENTS):
        fused = encoder_for(x, torch.float32)
        found: tuple[Tensor, Tensor] | None = fused and fused.value_range(as_dense(x), *keep)
        if found is not None:
            return found
    if not keep:
        # aminmax copies a tensor that is not contiguous; a minimum can use any order
        is_any_order = not x.is_contiguous() and not torch.compiler.is_compiling()
        low, high = torch.aminmax(flat(x) if is_any_order else x)
        return low, high
    if keep == (0,):
        each = rows(x)  # two reductions: aminmax over one dimension takes ten times as long
        shape = [x.shape[0]] + [1] * (x.dim() - 1)
        return each.amin(1).view(shape), each.amax(1).view(shape)
    drop = tuple(d for d in range(x.dim()) if d not in keep)
    return x.amin(dim=drop, keepdim=True), x.amax(dim=drop, keepdim=True)


def grid_step(low: Tensor, high: Tensor, levels: Tensor, floor: float = 0.0) -> Tensor:
    """The step s = (high - low) / levels; 1 for an empty range, so that a constant stays itself."""
    step = (high - low) / levels
    if floor > 0:
        step = step.clamp_min(floor)
    return step + (step == 0)


def round_nearest(x: Tensor, scale: Tensor, offset: Tensor, levels: Tensor) -> Tensor:
    """x^ = rint(clamp((x - offset) / scale, 0, levels)) * scale + offset, half to even.

    >>> x = torch.tensor([-1.0, -0.4, 0.1, 0.7, 2.0])
    >>> round_nearest(x, torch.tensor(3 / 7), torch.tensor(-1.0), torch.tensor(7.0))
    tensor([-1.0000, -0.5714,  0.2857,  0.7143,  2.0000])
    """
    fused = encoder_for(x, torch.float32)
    if fused and fused.is_per_channel(x, scale, offset, levels):
        made: Tensor | None = fused.round_to_grid(
            as_dense(x), scale, offset, levels, None, torch.float32
        )
        if made is not None:
            return made
    return _nearest(x, scale, offset, levels)


def round_stochastic(
    x: Tensor, scale: Tensor, offset: Tensor, levels: Tensor, key: Tensor
) -> Tensor:
    """`round_nearest` with U(-1/2, 1/2) added before the clamp: unbiased inside the range."""
    fused = encoder_for(x, torch.float32)
    if fused and fused.is_per_channel(x, scale, offset, levels):
        if not is_numbered_in_memory_order(x):
            return in_layout_of(x, round_stochastic(x.contiguous(), scale, offset, levels, key))
        made: Tensor | None = fused.round_to_grid(x, scale, offset, levels, key, torch.float32)
        if made is not None:
            return made
    return _stochastic(x, scale, offset, levels, key)


def quantize_at_once(
    x: Tensor,
    within: tuple[Tensor, Tensor] | tuple[int, ...],
    levels: Tensor,
    rule: Rule,
    *,
    floor: float = 0.0,
    key: Tensor | None = None,
    dtype: torch.dtype,
) -> OnGrid | None:
    """The grid of a range and the tensor on it by one call; None where that cannot be.

    within: the range, or the dimensions to `keep` in the tensor's own. dtype: float32 for values,
    which have the dtype of `x`; uint8 for codes, whose scale is 0 where every value is the offset.
    """
    is_count = levels.dtype is torch.int32 and levels.dim() == 0
    fused = encoder_for(x, *((torch.float32,) if x.is_cpu else FLOATS)) if is_count else None
    if fused is None:
        return None
    if key is not None and not is_numbered_in_memory_order(x):
        return None
    has_range = len(within) == 2 and isinstance(within[0], Tensor)
    if has_range and not fused.is_per_channel(x, *cast(tuple[Tensor, Tensor], within)):
        return None
    if not has_range and (len(within) > 1 or x.numel() == 0):
        return None
    ends_or_keep: Any = within if has_range else within[0] if within else None
    x = x if x.is_contiguous() else as_dense(x)
    dtype = x.dtype if dtype is torch.float32 else dtype
    made: OnGrid | None = fused.quantize(
        x, ends_or_keep, levels, rule, floor=floor, key=key, dtype=dtype
    )
    return made


def _nearest(x: Tensor, scale: Tensor, offset: Tensor, levels: Tensor) -> Tensor:
    u = (x - offset) / scale
    q = torch.minimum(u.clamp_min(0.0), levels).round()
    return q * scale + offset


def _stochastic(x: Tensor, scale: Tensor, offset: Tensor, levels: Tensor, key: Tensor) -> Tensor:
    u = (x - offset) / scale + uniform(element_numbers(x), key)
    q = torch.minimum(u.clamp_min(0.0), levels).round()
    return q * scale + offset


_SQRT_HALF = 0.5**0.5


def nearest_power(x: Tensor) -> Tensor:
    """The nearest power of two, 2^rint(log2 x), for x > 0; 0 for 0.

    x = mantissa * 2^exponent with the mantissa in [1/2, 1), so x / mantissa is 2^exponent to the
    last bit, and log2 x rounds down to exponent - 1 if the mantissa is below sqrt(1/2).

    >>> nearest_power(torch.tensor([0.3, 0.36, 1.0, 0.0]))
    tensor([0.2500, 0.5000, 1.0000, 0.0000])
    """
    mantissa = torch.frexp(x).mantissa
    power = x / (mantissa + (mantissa == 0))
    return torch.where(mantissa < _SQRT_HALF, power * 0.5, power)


def power_above(x: Tensor) -> Tensor:
    """The smallest power of two that is not below x, 2^ceil(log2 x), for x > 0; 0 for 0.

    >>> power_above(torch.tensor([0.3, 0.5, 5.0, 0.0]))
    tensor([0.5000, 0.5000, 8.0000, 0.0000])
    """
    mantissa = torch.frexp(x).mantissa
    power = x / (mantissa + (mantissa == 0))
    return torch.where(mantissa == 0.5, power * 0.5, power)
