"""Integer codes of the affine grid: value = scale * code + offset, one byte per element.

Codes are uint8, 0..levels: the integers that `ops.affine` rounds to, so both give the same values.
A NaN has no code: it shows in the scale, which comes from the range of the same tensor.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bitcycle.ops.fused import encoder_for
from bitcycle.ops.layout import as_dense, element_numbers, in_layout_of, is_numbered_in_memory_order
from bitcycle.ops.noise import uniform


def nearest_codes(x: Tensor, scale: Tensor, offset: Tensor, levels: Tensor) -> Tensor:
    """rint(clamp((x - offset) / scale, 0, levels)), half to even.

    >>> x = torch.tensor([-1.0, -0.4, 0.1, 0.7, 2.0])
    >>> grid = torch.tensor(3 / 7), torch.tensor(-1.0), torch.tensor(7.0)
    >>> nearest_codes(x, *grid)
    tensor([0, 1, 3, 4, 7], dtype=torch.uint8)
    """
    fused = encoder_for(x, torch.float32)
    if fused and fused.is_per_channel(x, scale, offset, levels):
        made: Tensor | None = fused.round_to_grid(
            as_dense(x), scale, offset, levels, None, torch.uint8
        )
        if made is not None:
            return made
    return _to_code((x - offset) / scale, levels)


def stochastic_codes(
    x: Tensor, scale: Tensor, offset: Tensor, levels: Tensor, key: Tensor
) -> Tensor:
    """`nearest_codes` with U(-1/2, 1/2) added before the clamp."""
    fused = encoder_for(x, torch.float32)
    if fused and fused.is_per_channel(x, scale, offset, levels):
        if not is_numbered_in_memory_order(x):
            return in_layout_of(x, stochastic_codes(x.contiguous(), scale, offset, levels, key))
        made: Tensor | None = fused.round_to_grid(x, scale, offset, levels, key, torch.uint8)
        if made is not None:
            return made
    return _to_code((x - offset) / scale + uniform(element_numbers(x), key), levels)


def decode(codes: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
    """The values scale * code + offset, in the memory layout of the codes.

    >>> decode(torch.tensor([0, 3], dtype=torch.uint8), torch.tensor(0.5), torch.tensor(-1.0))
    tensor([-1.0000,  0.5000])
    """
    fused = encoder_for(codes, torch.uint8)
    if fused and fused.is_per_channel(codes, scale, offset):
        made: Tensor | None = fused.decode(as_dense(codes), scale, offset)
        if made is not None:
            return made
    return codes * scale + offset


def _to_code(u: Tensor, levels: Tensor) -> Tensor:
    return torch.minimum(u.clamp_min(0.0), levels).round().to(torch.uint8)
