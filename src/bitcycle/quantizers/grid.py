"""A tensor on an affine grid, as values or as codes: what most rules end with."""

from __future__ import annotations

import torch
from torch import Tensor

from bitcycle.ops.affine import round_nearest, round_stochastic
from bitcycle.ops.codes import nearest_codes, stochastic_codes
from bitcycle.quantizers.base import Quantized


def put_on_grid(
    x: Tensor,
    scale: Tensor,
    offset: Tensor,
    levels: Tensor,
    *,
    key: Tensor | None = None,
    carrier: torch.dtype | None = None,
    has_steps: Tensor,
) -> Quantized:
    """q = rint(clamp((x - offset) / scale, 0, levels)), x^ = q * scale + offset.

    With a key the rounding is stochastic. carrier: torch.uint8 or torch.int8 for codes, None for
    values, in the dtype of `x`. has_steps: False where x^ is the offset, to the last bit.

    >>> one = torch.tensor(1.0)
    >>> x = torch.tensor([-1.0, 0.2, 7.6])
    >>> put_on_grid(x, one / 2, one * 0, one * 3, has_steps=one > 0).dequantize()
    tensor([0.0000, 0.0000, 1.5000])
    """
    work = x.to(work_dtype(x))
    if carrier is None:
        if key is not None:
            values = round_stochastic(work, scale, offset, levels, key)
        else:
            values = round_nearest(work, scale, offset, levels)
        return Quantized(scale=scale, offset=offset, values=values.to(x.dtype))
    half = (levels + 1) * 0.5
    if key is not None:
        codes = stochastic_codes(work, scale, offset, levels, key)
    else:
        codes = nearest_codes(work, scale, offset, levels, carrier)
    scale = scale * has_steps
    if codes.dtype == torch.int8:  # shifted down by half their range
        offset = offset + scale * half
    return Quantized(scale, offset, codes=codes, half=half)


def work_dtype(x: Tensor) -> torch.dtype:
    """Grids of half-precision tensors are float32."""
    return torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype


def largest(low: Tensor, high: Tensor) -> Tensor:
    """max|x| of a tensor with these extremes."""
    return torch.maximum(low.abs(), high.abs())
