"""Pack what the backward pass needs: 4-bit codes two per byte, signs 32 per int32.

Both in memory order, the first element in the lowest bits.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from bitcycle.native import encode as native
from bitcycle.ops.layout import as_dense, flat, is_dense, like

WORD_BITS = 32  # of a word
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the bytes of a float


def pack_nibbles(codes: Tensor) -> Tensor:
    """Pack codes of at most 4 bits (0..15), two per byte.

    >>> pack_nibbles(torch.tensor([1, 2, 3], dtype=torch.uint8))
    tensor([33,  3], dtype=torch.uint8)
    """
    codes = codes.reshape(-1)
    if native.is_available(codes, torch.uint8):
        return native.pack_nibbles(codes.contiguous())
    return _pack_nibbles(codes)


def _pack_nibbles(codes: Tensor) -> Tensor:
    if codes.numel() % 2:
        codes = F.pad(codes, (0, 1))
    low, high = codes.view(-1, 2).unbind(1)
    return (low & 15) | (high << 4)


def unpack_nibbles(packed: Tensor, count: int) -> Tensor:
    """The first `count` codes of `pack_nibbles`.

    >>> unpack_nibbles(torch.tensor([0xF1], dtype=torch.uint8), 2)
    tensor([ 1, 15], dtype=torch.uint8)
    """
    if native.is_available(packed, torch.uint8) and packed.is_contiguous():
        return native.unpack_nibbles(packed, packed.new_empty(count))
    return _unpack_nibbles(packed, count)


def _unpack_nibbles(packed: Tensor, count: int) -> Tensor:
    return torch.stack([packed & 15, packed >> 4], dim=1).view(-1)[:count]


def pack_codes(codes: Tensor) -> Tensor:
    """`pack_nibbles` in memory order; row-major in a compiled graph.

    >>> pack_codes(torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8).t())
    tensor([33, 67], dtype=torch.uint8)
    """
    if native.is_available(codes, torch.uint8):
        return native.pack_nibbles(as_dense(codes))
    return pack_nibbles(codes if torch.compiler.is_compiling() else flat(codes))


def unpack_codes(packed: Tensor, shape: torch.Size, stride: tuple[int, ...]) -> Tensor:
    """The codes of `pack_codes`; shape, stride: of the codes.

    >>> unpack_codes(torch.tensor([33, 67], dtype=torch.uint8), (2, 2), (1, 2))
    tensor([[1, 3],
            [2, 4]], dtype=torch.uint8)
    """
    if torch.compiler.is_compiling():
        return unpack_nibbles(packed, math.prod(shape)).view(shape)
    codes = torch.empty_strided(shape, stride, dtype=torch.uint8, device=packed.device)
    if native.is_available(packed, torch.uint8) and packed.is_contiguous() and is_dense(codes):
        return native.unpack_nibbles(packed, codes)
    return like(unpack_nibbles(packed, codes.numel()), codes)


def pack_positive(x: Tensor) -> Tensor:
    """A bit mask of a tensor, in the order of `flat(x)`: 0 where it is <= 0, else 1 (also a NaN).

    >>> pack_positive(torch.tensor([0.0, 1.0, -2.0, 3.0])).view(torch.uint8)[0] & 15
    tensor(10, dtype=torch.uint8)
    """
    if native.is_available(x, torch.float32):
        return native.pack_positive(as_dense(x))
    return _pack_positive(flat(x))


def relu_mask(x: Tensor) -> tuple[Tensor, Tensor]:
    """max(x, 0) and its `pack_positive`; row-major in a compiled graph.

    >>> relu_mask(torch.tensor([-1.0, 2.0]))[0]
    tensor([0., 2.])
    """
    if native.is_available(x, torch.float32) and is_dense(x):
        output = torch.empty_like(x)
        return output, native.pack_positive(x, output=output)
    output = x.relu()
    return output, pack_positive(output.reshape(-1) if torch.compiler.is_compiling() else output)


def _pack_positive(x: Tensor) -> Tensor:
    blocked = x <= 0  # not x > 0: torch's ReLU passes the gradient of a NaN
    if x.numel() % WORD_BITS:
        blocked = F.pad(blocked, (0, -x.numel() % WORD_BITS))
    if torch.compiler.is_compiling():  # one pass; uncompiled it is slower
        place = torch.arange(WORD_BITS, dtype=torch.int32, device=x.device)
        bits = blocked.view(blocked.numel() // WORD_BITS, WORD_BITS).to(torch.int32) << place
        return ~bits.sum(1, dtype=torch.int32)
    eights = blocked.view(torch.uint8).view(blocked.numel() // 8, 8)
    gathered = eights.new_zeros(len(eights))
    for i in range(8):
        gathered.add_(eights[:, i], alpha=1 << i)
    return ~gathered.view(torch.int32)


def keep_positive(words: Tensor, g: Tensor) -> Tensor:
    """`g` where the bit in the order of `flat(g)` is 1; else 0.0, even if `g` is infinite or NaN.

    >>> keep_positive(pack_positive(torch.tensor([1.0, 0.0, 3.0])), torch.tensor([4.0, 5.0, 6.0]))
    tensor([4., 0., 6.])
    """
    if native.is_available(g, torch.float32):
        is_constant = g.dim() == 1 and g.stride(0) == 0
        return native.keep_positive(words, g if is_constant else as_dense(g))
    return like(_keep_positive(words, flat(g)), g)


def _keep_positive(words: Tensor, g: Tensor) -> Tensor:
    place = torch.arange(WORD_BITS, dtype=torch.int32, device=g.device)
    lifted = words[:, None] << (WORD_BITS - 1 - place)  # (M, 32): an element's bit is now a sign
    if torch.compiler.is_compiling():
        padded = F.pad(g, (0, lifted.numel() - g.numel())) if g.numel() % WORD_BITS else g
        return torch.where(lifted < 0, padded.view(lifted.shape), 0).view(-1)[: g.numel()]
    # uncompiled, torch.where takes ten times as long as these masks of all bits or none
    masks = lifted.bitwise_right_shift_(WORD_BITS - 1).view(-1)[: g.numel()]
    masks = masks.to(_INTEGERS[g.element_size()])
    return masks.bitwise_and_(g.view(masks.dtype)).view(g.dtype)
