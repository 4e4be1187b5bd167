"""Pack what the backward pass needs: 4-bit codes two per byte, masks of one bit 32 per int32.

Both in memory order, the first element in the lowest bits.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bitcycle.native import encode as native
from bitcycle.ops.fused import encoder_for
from bitcycle.ops.layout import as_dense, flat, flat_stride, is_dense, like

WORD_BITS = 32  # of a word
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the bytes of a float


def pack_nibbles(codes: Tensor) -> Tensor:
    """Pack codes of at most 4 bits (0..15), two per byte.

    >>> pack_nibbles(torch.tensor([1, 2, 3], dtype=torch.uint8))
    tensor([33,  3], dtype=torch.uint8)
    """
    codes = codes.reshape(-1)
    fused = encoder_for(codes, torch.uint8)
    packed: Tensor | None = fused and fused.pack_nibbles(codes.contiguous())
    return _pack_nibbles(codes) if packed is None else packed


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
    fused = encoder_for(packed, torch.uint8) if packed.is_contiguous() else None
    codes: Tensor | None = fused and fused.unpack_nibbles(packed, packed.new_empty(count))
    return _unpack_nibbles(packed, count) if codes is None else codes


def _unpack_nibbles(packed: Tensor, count: int) -> Tensor:
    return torch.stack([packed & 15, packed >> 4], dim=1).view(-1)[:count]


def pack_codes(codes: Tensor) -> Tensor:
    """`pack_nibbles` in memory order; row-major in a compiled graph.

    >>> pack_codes(torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8).t())
    tensor([33, 67], dtype=torch.uint8)
    """
    fused = encoder_for(codes, torch.uint8)
    packed: Tensor | None = fused and fused.pack_nibbles(as_dense(codes))
    if packed is not None:
        return packed
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
    is_plain = packed.is_contiguous() and is_dense(codes)
    fused = encoder_for(packed, torch.uint8) if is_plain else None
    if fused and fused.unpack_nibbles(packed, codes) is not None:
        return codes
    return like(unpack_nibbles(packed, codes.numel()), codes)


def pack_positive(x: Tensor) -> Tensor:
    """A bit mask of a tensor, in the order of `flat(x)`: 0 where it is <= 0, else 1 (also a NaN).

    >>> pack_positive(torch.tensor([0.0, 1.0, -2.0, 3.0])).view(torch.uint8)[0] & 15
    tensor(10, dtype=torch.uint8)
    """
    if native.is_available(x, *native.FLOATS):
        return native.pack_positive(as_dense(x))
    return _pack_positive(flat(x))


class Masked(NamedTuple):
    """The output of a ReLU or a dropout, and its bit mask."""

    output: Tensor
    words: Tensor  # 32 bits each, in the memory order of a tensor with this stride
    stride: tuple[int, ...] | None  # None: row-major, of a compiled graph


def relu_mask(x: Tensor, *, inplace: bool = False) -> Masked:
    """max(x, 0) and its `pack_positive`.

    inplace: overwrites `x`, which autograd learns from the caller's `mark_dirty`.

    >>> relu_mask(torch.tensor([-1.0, 2.0])).output
    tensor([0., 2.])
    """
    if native.is_available(x, *native.FLOATS) and is_dense(x):
        output = x if inplace else torch.empty_like(x)
        return Masked(output, native.pack_positive(x, output), x.stride())
    output = x.relu_() if inplace else x.relu()
    if torch.compiler.is_compiling():
        return Masked(output, pack_positive(output.reshape(-1)), None)
    return Masked(output, pack_positive(output), flat_stride(output))


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


def keep_positive(words: Tensor, g: Tensor, *, inplace: bool = False) -> Tensor:
    """`g` where the bit in the order of `flat(g)` is 1; else 0.0, even if `g` is infinite or NaN.

    inplace: `g` is not needed any more, and may be overwritten.

    >>> keep_positive(pack_positive(torch.tensor([1.0, 0.0, 3.0])), torch.tensor([4.0, 5.0, 6.0]))
    tensor([4., 0., 6.])
    """
    if native.is_available(g, *native.FLOATS):
        g = as_dense(g)
        return native.keep_positive(words, g, g if inplace else torch.empty_like(g))
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


def dropout_mask(x: Tensor, p: float, *, inplace: bool = False) -> Masked:
    """`F.dropout(x, p)` of a CPU tensor for 0 < p < 1, and a mask of 1 where `x` was kept.

    inplace: as in `relu_mask`.

    >>> _ = torch.manual_seed(0)
    >>> dropout_mask(torch.ones(8), 0.5).output.unique()
    tensor([0., 2.])
    """
    if native.is_available(x, *native.FLOATS) and is_dense(x):
        # bytes: torch draws the same for them as for floats
        drawn = torch.empty_like(x, dtype=torch.uint8).bernoulli_(1 - p)
        output = x if inplace else torch.empty_like(x)
        words = native.drop(x, drawn, _kept_factor(p, x.dtype), output)
        return Masked(output, words, x.stride())
    # the steps of torch's own CPU dropout: another layout or order would draw other numbers
    noise = torch.empty_like(x).bernoulli_(1 - p).div_(1 - p)
    return Masked(x.mul_(noise) if inplace else x * noise, pack_positive(noise), noise.stride())


def drop_again(words: Tensor, stride: tuple[int, ...], g: Tensor, p: float) -> Tensor:
    """The dropout that a mask is of, on another tensor.

    >>> _ = torch.manual_seed(0)
    >>> output, words, stride = dropout_mask(torch.ones(8), 0.5)
    >>> torch.equal(drop_again(words, stride, torch.ones(8), 0.5), output)
    True
    """
    if native.is_available(g, *native.FLOATS) and g.stride() == stride:
        return native.drop_again(words, g, _kept_factor(p, g.dtype))
    factor = torch.ones((), dtype=g.dtype, device=g.device).div_(1 - p)
    noise = keep_positive(words, factor.expand(g.numel())).as_strided(g.shape, stride)
    return g * noise  # a product: the gradient of 0 may be -0 or NaN


@functools.lru_cache(maxsize=256)
def _kept_factor(p: float, dtype: torch.dtype) -> float:
    """1 / (1 - p) in torch's arithmetic of the dtype."""
    return torch.ones((), dtype=dtype, device="cpu").div_(1 - p).item()
