"""Integer codes of the affine grid: value = scale * code + offset, one byte per element.

An 8-bit integer product takes one uint8 and one int8 operand. uint8 holds the code 0..levels
itself, int8 holds it shifted down by `half` = 2^(b-1), to -half .. half - 1. The codes are the
integers that `ops.affine` rounds to, so both give the same values. A NaN has no code: it shows in
the scale, which comes from the range of the same tensor.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bitcycle.ops.fused import Fused
from bitcycle.ops.layout import (
    element_numbers,
    flat,
    is_channels_last,
    is_dense,
    like,
)
from bitcycle.ops.noise import element_index, uniform


def nearest_codes(
    x: Tensor, scale: Tensor, offset: Tensor, levels: Tensor, carrier: torch.dtype
) -> Tensor:
    """rint(clamp((x - offset) / scale, 0, levels)), half to even; `carrier`: uint8 or int8.

    >>> x = torch.tensor([-1.0, -0.4, 0.1, 0.7, 2.0])
    >>> grid = torch.tensor(3 / 7), torch.tensor(-1.0), torch.tensor(7.0)
    >>> nearest_codes(x, *grid, torch.uint8), nearest_codes(x, *grid, torch.int8)
    (tensor([0, 1, 3, 4, 7], dtype=torch.uint8), tensor([-4, -3, -1,  0,  3], dtype=torch.int8))
    """
    return _nearest[carrier].apply_scaled(x, scale, offset, levels)


def stochastic_codes(
    x: Tensor, scale: Tensor, offset: Tensor, levels: Tensor, key: Tensor
) -> Tensor:
    """`nearest_codes` in uint8, with U(-1/2, 1/2) added before the clamp."""
    if torch.compiler.is_compiling() or scale.dim() > 0:
        return _stochastic(x, scale, offset, levels, element_numbers(x), key)
    if x.is_contiguous() or is_channels_last(x):
        return like(_fused_stochastic(flat(x), scale, offset, levels, key), x)
    codes = stochastic_codes(x.contiguous(), scale, offset, levels, key)
    return torch.empty_like(x, dtype=codes.dtype).copy_(codes) if is_dense(x) else codes


def decode(codes: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
    """The values scale * code + offset, in the memory layout of the codes.

    >>> decode(torch.tensor([0, 3], dtype=torch.uint8), torch.tensor(0.5), torch.tensor(-1.0))
    tensor([-1.0000,  0.5000])
    """
    return _fused_decode.apply_scaled(codes, scale, offset)


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


def _nearest_uint8(x: Tensor, scale: Tensor, offset: Tensor, levels: Tensor) -> Tensor:
    return _to_code((x - offset) / scale, levels).to(torch.uint8)


def _nearest_int8(x: Tensor, scale: Tensor, offset: Tensor, levels: Tensor) -> Tensor:
    return (_to_code((x - offset) / scale, levels) - (levels + 1) * 0.5).to(torch.int8)


def _stochastic(
    x: Tensor, scale: Tensor, offset: Tensor, levels: Tensor, index: Tensor, key: Tensor
) -> Tensor:
    return _to_code((x - offset) / scale + uniform(index, key), levels).to(torch.uint8)


def _stochastic_flat(
    x: Tensor, scale: Tensor, offset: Tensor, levels: Tensor, key: Tensor
) -> Tensor:
    return _stochastic(x, scale, offset, levels, element_index(x.shape, x.device), key)


def _decode(codes: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
    return codes * scale + offset


_nearest = {torch.uint8: Fused(_nearest_uint8), torch.int8: Fused(_nearest_int8)}
_fused_stochastic = Fused(_stochastic_flat)
_fused_decode = Fused(_decode)
