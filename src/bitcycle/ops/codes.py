"""Integer codes of the affine grid: value = scale * code + offset, one byte per element.

An 8-bit integer product takes one uint8 and one int8 operand. uint8 holds the code 0..levels
itself, int8 holds it shifted down by `half` = 2^(b-1), to -half .. half - 1. The codes are the
integers that `ops.affine` rounds to, so both give the same values. A NaN has no code: it shows in
the scale, which comes from the range of the same tensor.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bitcycle.native import encode as native
from bitcycle.ops.layout import as_dense, element_numbers, in_layout_of, is_numbered_in_memory_order
from bitcycle.ops.noise import uniform


def nearest_codes(
    x: Tensor, scale: Tensor, offset: Tensor, levels: Tensor, carrier: torch.dtype
) -> Tensor:
    """rint(clamp((x - offset) / scale, 0, levels)), half to even; `carrier`: uint8 or int8.

    >>> x = torch.tensor([-1.0, -0.4, 0.1, 0.7, 2.0])
    >>> grid = torch.tensor(3 / 7), torch.tensor(-1.0), torch.tensor(7.0)
    >>> nearest_codes(x, *grid, torch.uint8), nearest_codes(x, *grid, torch.int8)
    (tensor([0, 1, 3, 4, 7], dtype=torch.uint8), tensor([-4, -3, -1,  0,  3], dtype=torch.int8))
    """
    if native.is_available(x, torch.float32) and native.is_per_channel(x, scale, offset, levels):
        return native.round_to_grid(as_dense(x), scale, offset, levels, None, carrier)
    return _nearest(x, scale, offset, levels, carrier)


def stochastic_codes(
    x: Tensor, scale: Tensor, offset: Tensor, levels: Tensor, key: Tensor
) -> Tensor:
    """`nearest_codes` in uint8, with U(-1/2, 1/2) added before the clamp."""
    if native.is_available(x, torch.float32) and native.is_per_channel(x, scale, offset, levels):
        if is_numbered_in_memory_order(x):
            return native.round_to_grid(x, scale, offset, levels, key, torch.uint8)
        return in_layout_of(x, stochastic_codes(x.contiguous(), scale, offset, levels, key))
    return _stochastic(x, scale, offset, levels, key)


def decode(codes: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
    """The values scale * code + offset, in the memory layout of the codes.

    >>> decode(torch.tensor([0, 3], dtype=torch.uint8), torch.tensor(0.5), torch.tensor(-1.0))
    tensor([-1.0000,  0.5000])
    """
    if native.is_available(codes, torch.uint8, torch.int8) and native.is_per_channel(
        codes, scale, offset
    ):
        return native.decode(as_dense(codes), scale, offset)
    return codes * scale + offset


def shift_codes(codes: Tensor, by: Tensor) -> Tensor:
    """uint8 codes shifted down by `by` to int8, or int8 codes shifted up by it to uint8.

    Bytes wrap around: 255 - 128 and 127 + 128 are the same eight bits.

    >>> shift_codes(torch.tensor([0, 255], dtype=torch.uint8), torch.tensor(128))
    tensor([-128,  127], dtype=torch.int8)
    """
    by = by.to(torch.uint8)
    if codes.dtype == torch.uint8:
        return (codes - by).view(torch.int8)
    return codes.view(torch.uint8) + by


def _to_code(u: Tensor, levels: Tensor) -> Tensor:
    return torch.minimum(u.clamp_min(0.0), levels).round()


def _nearest(
    x: Tensor, scale: Tensor, offset: Tensor, levels: Tensor, carrier: torch.dtype
) -> Tensor:
    q = _to_code((x - offset) / scale, levels)
    return (q if carrier == torch.uint8 else q - (levels + 1) * 0.5).to(carrier)


def _stochastic(x: Tensor, scale: Tensor, offset: Tensor, levels: Tensor, key: Tensor) -> Tensor:
    return _to_code((x - offset) / scale + uniform(element_numbers(x), key), levels).to(torch.uint8)
