"""Counter-based random numbers: a pure function of seed, purpose, epoch and index.

`draw_bits` hashes its keys with the finalizer of SplitMix64 (Steele et al., 2014). Unsigned 64-bit
arithmetic of numpy is exact and the same on every machine.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLY_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = np.uint64(0x94D049BB133111EB)


class Purpose(IntEnum):
    """The use of a draw: two uses of one (seed, epoch, index) are independent."""

    ORDER = 1
    SUBSET = 2
    HOLD_OUT = 3
    CROP_Y = 4
    CROP_X = 5
    FLIP = 6
    CROP_AREA = 7
    CROP_RATIO = 8
    SPLIT = 9


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The SplitMix64 step: add the golden ratio, then scramble; a bijection of 64-bit integers.

    >>> hex(mix(np.zeros(1, np.uint64))[0])  # the published first output for seed 0
    '0xe220a8397b1dcdaf'
    """
    x = x + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * _MULTIPLY_1
    x = (x ^ (x >> np.uint64(27))) * _MULTIPLY_2
    return x ^ (x >> np.uint64(31))


def draw_bits(
    seed: int, purpose: Purpose, epoch: int, counters: NDArray[np.int64], trial: int = 0
) -> NDArray[np.uint64]:
    """64 random bits per counter, such as the index of a sample."""
    state = np.zeros(1, np.uint64)
    for key in (seed, int(purpose), epoch, trial):
        state = mix(state ^ np.array([key & _MASK], np.uint64))
    # mixed before and after: both neighbouring counters and neighbouring keys become independent
    return mix(state ^ mix(counters.astype(np.uint64)))


def integers(random_bits: NDArray[np.uint64], high: int) -> NDArray[np.int64]:
    """Integers in 0..high-1, from the upper half of the bits; high is below 2**32.

    >>> integers(np.array([0, 2**63, 2**64 - 1], np.uint64), 9).tolist()
    [0, 4, 8]
    """
    return (((random_bits >> np.uint64(32)) * np.uint64(high)) >> np.uint64(32)).astype(np.int64)


def uniforms(random_bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Numbers in [0, 1) with 53 random bits.

    >>> uniforms(np.array([0, 2**63], np.uint64)).tolist()
    [0.0, 0.5]
    """
    return (random_bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permutation(
    length: int, seed: int, *, epoch: int = 0, purpose: Purpose = Purpose.ORDER
) -> NDArray[np.int64]:
    """The order of an epoch: 0..length-1 sorted by their random bits, a pure function.

    >>> permutation(6, seed=0, epoch=0).tolist() == permutation(6, seed=0, epoch=0).tolist()
    True
    """
    keys = draw_bits(seed, purpose, epoch, np.arange(length))
    return np.argsort(keys, kind="stable").astype(np.int64)
