"""Fewer bytes for what waits for the backward pass: two 4-bit codes per byte."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def pack_nibbles(codes: Tensor) -> Tensor:
    """Codes of at most 4 bits (0..15 or -8..7), in memory order, two per byte.

    >>> pack_nibbles(torch.tensor([1, 2, 3], dtype=torch.uint8))
    tensor([33,  3], dtype=torch.uint8)
    """
    codes = codes.reshape(-1).view(torch.uint8)
    if codes.numel() % 2:
        codes = F.pad(codes, (0, 1))
    low, high = codes.view(-1, 2).unbind(1)
    return (low & 15) | (high << 4)


def unpack_nibbles(packed: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """The first `count` codes, as they were.

    >>> unpack_nibbles(torch.tensor([0xF1], dtype=torch.uint8), 2, torch.int8)
    tensor([ 1, -1], dtype=torch.int8)
    """
    if dtype == torch.uint8:
        pairs = torch.stack([packed & 15, packed >> 4], dim=1)
    else:  # an arithmetic shift brings the sign back
        pairs = torch.stack([(packed << 4).view(torch.int8) >> 4, packed.view(torch.int8) >> 4], 1)
    return pairs.view(-1)[:count]
