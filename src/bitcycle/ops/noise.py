"""Noise for stochastic rounding: hash(seed, rank, layer, step, call, element) -> U(-1/2, 1/2).

A counter hash in 32-bit integers replaces a random generator: it has no state to save or
synchronize and gives the same numbers in eager and compiled code. It needs three multiplications: a
chi-square test over 2^20 consecutive counters rejects two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bitcycle.native import encode as native
from bitcycle.ops.fused import grids_for

# Odd multipliers of the "triple32" hash; signed, because torch's int32 wraps like two's complement.
_M1, _M2, _M3 = 0xED5AD4BB - 2**32, 0xAC4C1B51 - 2**32, 0x31848BAB
_WEYL = 0x9E3779B9 - 2**32  # 2^32 / golden ratio: separates the two words of a key
_STEP, _CALL = 0x2C1B3C6D, 0x297A2D39


def _logical_shift(x: Tensor, n: int) -> Tensor:
    return (x >> n) & ((1 << (32 - n)) - 1)  # >> is arithmetic on int32


def hash32(x: Tensor, k0: Tensor | int = 0, k1: Tensor | int = 0) -> Tensor:
    """int32 -> int32 with random high 24 bits for every key (k0, k1)."""
    x = (x ^ k0) * _M1 + k1
    x = (x ^ _logical_shift(x, 15)) * _M2
    return (x ^ _logical_shift(x, 14)) * _M3


def hash_ints(*numbers: int) -> int:
    """A hash of Python ints as a signed 32-bit number, for keys that are computed once.

    >>> hash_ints(0, 1) != hash_ints(1, 0)
    True
    """
    mask = 2**32 - 1
    x = 0
    for number in numbers:
        for word in (number & mask, (number >> 32) & mask):
            x = ((x ^ word) * (_M1 & mask) + (_WEYL & mask)) & mask
            x = ((x ^ (x >> 15)) * (_M2 & mask)) & mask
            x = ((x ^ (x >> 14)) * (_M3 & mask)) & mask
            x ^= x >> 16
    return x - 2**32 if x >= 2**31 else x


def noise_key(clock: Tensor) -> Tensor:
    """[base, step, call] (int32) -> the two words of a key, on the clock's device.

    On the CPU, Python integers are faster than fourteen operations on tensors.
    """
    is_one = clock.dim() == 1 and clock.is_contiguous()
    if is_one and native.is_available(clock, torch.int32):
        return native.noise_key(clock)
    kernels = grids_for(clock, torch.int32) if is_one else None
    key: Tensor | None = kernels and kernels.noise_key(clock)
    if key is not None:
        return key
    if is_one and clock.device.type == "cpu" and not torch.compiler.is_compiling():
        base, step, call = clock.tolist()
        number = base + step * _STEP + call * _CALL
        return torch.tensor([_key_word(number), _key_word(number + _WEYL)], dtype=torch.int32)
    return _key_words(clock)


def _key_words(clock: Tensor) -> Tensor:
    """`noise_key` by operations on tensors."""
    word = clock[0] + clock[1] * _STEP + clock[2] * _CALL
    x = torch.stack([word, word + _WEYL])
    x = hash32(x)
    return x ^ _logical_shift(x, 16)


def _key_word(word: int) -> int:
    """One word of `noise_key` in Python integers."""
    mask = 2**32 - 1
    x = ((word & mask) * (_M1 & mask)) & mask
    x = ((x ^ (x >> 15)) * (_M2 & mask)) & mask
    x = ((x ^ (x >> 14)) * _M3) & mask
    x ^= x >> 16
    return x - 2**32 if x >= 2**31 else x


def uniform(index: Tensor, key: Tensor) -> Tensor:
    """Element numbers (int32) -> float32 in (-1/2, 1/2): 2^24 equally spaced, symmetric values.

    key: of `noise_key`, or the clock that it is made from, as GPU kernels take it.
    """
    key = _key_words(key) if len(key) == 3 else key
    x = hash32(index, key[0], key[1]) >> 8
    return (x.to(torch.float32) + 0.5) * 2.0**-24


def element_index(shape: Sequence[int], device: torch.device) -> Tensor:
    """The row-major number of every element of a tensor of this shape, modulo 2^32."""
    return count_from(0, math.prod(shape), device).view(shape)


def count_from(start: int, stop: int, device: torch.device) -> Tensor:
    """start, start + 1, ... below `stop`, modulo 2^32 as signed numbers, as the library counts.

    >>> count_from(2**31 - 1, 2**31 + 1, torch.device("cpu"))
    tensor([ 2147483647, -2147483648], dtype=torch.int32)
    """
    if stop <= 2**31:
        return torch.arange(start, stop, dtype=torch.int32, device=device)
    return torch.arange(start, stop, device=device).to(torch.int32)
