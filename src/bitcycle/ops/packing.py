"""Pack what the backward pass needs: 4-bit codes two per byte, signs 32 per int32.

Word m of a mask of M words holds the bits of the elements m, m + M, m + 2M, ..., so that packing is
elementwise.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from bitcycle.native import encode as native

PLANES = 32
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the bytes of a float


def pack_nibbles(codes: Tensor) -> Tensor:
    """Pack codes of at most 4 bits (0..15 or -8..7), two per byte.

    >>> pack_nibbles(torch.tensor([1, 2, 3], dtype=torch.uint8))
    tensor([33,  3], dtype=torch.uint8)
    """
    codes = codes.reshape(-1)
    if native.is_available(codes, torch.uint8, torch.int8):
        return native.pack_nibbles(codes.contiguous())
    return _pack_nibbles(codes.view(torch.uint8))


def _pack_nibbles(codes: Tensor) -> Tensor:
    if codes.numel() % 2:
        codes = F.pad(codes, (0, 1))
    low, high = codes.view(-1, 2).unbind(1)
    return (low & 15) | (high << 4)


def unpack_nibbles(packed: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """The first `count` codes of `pack_nibbles`.

    >>> unpack_nibbles(torch.tensor([0xF1], dtype=torch.uint8), 2, torch.int8)
    tensor([ 1, -1], dtype=torch.int8)
    """
    if native.is_available(packed, torch.uint8) and packed.is_contiguous():
        return native.unpack_nibbles(packed, count, dtype)
    return _unpack_nibbles(packed, count, dtype)


def _unpack_nibbles(packed: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    if dtype == torch.uint8:
        pairs = torch.stack([packed & 15, packed >> 4], dim=1)
    else:  # an arithmetic shift extends the sign
        pairs = torch.stack([(packed << 4).view(torch.int8) >> 4, packed.view(torch.int8) >> 4], 1)
    return pairs.view(-1)[:count]


def pack_positive(x: Tensor) -> Tensor:
    """A bit mask of a flat tensor: 0 where it is <= 0, else 1 (also for a NaN).

    >>> pack_positive(torch.tensor([0.0, 1.0, -2.0, 3.0])).view(torch.uint8) & 1
    tensor([0, 1, 0, 1], dtype=torch.uint8)
    """
    if native.is_available(x, torch.float32) and x.is_contiguous():
        return native.pack_positive(x)
    return _pack_positive(x)


def _pack_positive(x: Tensor) -> Tensor:
    blocked = x <= 0  # not x > 0: torch's ReLU passes the gradient of a NaN
    if x.numel() % PLANES:
        blocked = F.pad(blocked, (0, -x.numel() % PLANES))
    if torch.compiler.is_compiling():
        return ~_gather_planes(blocked)
    planes = blocked.view(torch.uint8).view(8, blocked.numel() // 8)
    gathered = planes[0]
    for i in range(1, 8):
        gathered = torch.add(gathered, planes[i], alpha=1 << i)
    quarters = gathered.view(4, blocked.numel() // PLANES).to(torch.int32)
    words = quarters[0]
    for j in range(1, 4):
        words = words | (quarters[j] << 8 * j)
    return ~words


def _gather_planes(blocked: Tensor) -> Tensor:
    """The same bits in a form that compiles to one pass; uncompiled it is slower."""
    planes = blocked.view(PLANES, blocked.numel() // PLANES).to(torch.int32)
    words = planes[0]
    for plane in range(1, PLANES):
        i, j = divmod(plane, 4)
        words = words | (planes[plane] << (8 * j + i))
    return words


def keep_positive(words: Tensor, g: Tensor) -> Tensor:
    """`g` (flat) where the bit is 1; 0.0 elsewhere, even where `g` is infinite or NaN.

    >>> keep_positive(pack_positive(torch.tensor([1.0, 0.0, 3.0])), torch.tensor([4.0, 5.0, 6.0]))
    tensor([4., 0., 6.])
    """
    if native.is_available(g, torch.float32) and (g.is_contiguous() or g.stride(0) == 0):
        return native.keep_positive(words, g)
    return _keep_positive(words, g)


def _keep_positive(words: Tensor, g: Tensor) -> Tensor:
    plane = torch.arange(PLANES, dtype=torch.int32, device=g.device)
    to_sign = PLANES - 1 - 8 * (plane % 4) - plane // 4
    lifted = words << to_sign[:, None]  # (32, M): an element's bit is now a sign
    if torch.compiler.is_compiling():
        padded = F.pad(g, (0, lifted.numel() - g.numel())) if g.numel() % PLANES else g
        return torch.where(lifted < 0, padded.view(lifted.shape), 0).view(-1)[: g.numel()]
    # uncompiled, torch.where takes ten times as long as these masks of all bits or none
    masks = lifted.bitwise_right_shift_(PLANES - 1).view(-1)[: g.numel()]
    masks = masks.to(_INTEGERS[g.element_size()])
    return masks.bitwise_and_(g.view(masks.dtype)).view(g.dtype)
