"""Tensors rounded to number formats by the native library, one call each.

Every function is equal to the last bit to the plain torch of `bitcycle.formats.rounding`, which
decides whether to call it. Tensors are contiguous float32; `numbers` (int32) are mantissa bits,
least exponent and the bits of the largest value.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Sequence
from struct import Struct

import torch
from torch import Tensor

from bitcycle.native.encode import is_available as is_available
from bitcycle.native.library import library

SIZE = 16  # of the Hadamard transform
_KINDS = {"fp8": 0, "mx": 1, "nvfp4": 2}

# the structs of formats.cpp and bf16.cpp
_ELEMENTS = Struct("PqPPPq").pack
_BF16 = Struct("PqqPPq").pack
_HADAMARD = Struct("PqqqPPq").pack
_BLOCKS = Struct("PqqqqqqqqqqPPPqqqPq").pack


@functools.cache
def _function(name: str) -> Callable[[bytes], None]:
    found = library()
    assert found is not None
    function = getattr(found, f"bitcycle_{name}")
    function.argtypes, function.restype = (ctypes.c_char_p,), None
    return function  # type: ignore[no-any-return]


def _address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()


def _around(shape: Sequence[int], dim: int) -> tuple[int, int, int]:
    """The shape as (outer, that dimension, inner)."""
    return math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :])


def round_elements(x: Tensor, numbers: Tensor, key: Tensor | None) -> Tensor:
    """Elements without a scale, in memory order; x: dense. key: for stochastic rounding."""
    out = torch.empty_like(x)
    _function("round_elements")(
        _ELEMENTS(
            x.data_ptr(),
            x.numel(),
            numbers.data_ptr(),
            _address(key),
            out.data_ptr(),
            torch.get_num_threads(),
        )
    )
    return out


def to_bf16(x: Tensor, flag: Tensor | None) -> Tensor:
    """Elements in bfloat16; x: dense, float32 or bfloat16, which is returned.

    flag: a float32 number that turns NaN if an element is not finite.
    """
    is_half = x.dtype is torch.bfloat16
    out = x if is_half else torch.empty_like(x, dtype=torch.bfloat16)
    threads = torch.get_num_threads()
    _function("to_bf16")(
        _BF16(x.data_ptr(), is_half, x.numel(), out.data_ptr(), _address(flag), threads)
    )
    return out


def hadamard(x: Tensor, dim: int, signs: Tensor) -> Tensor:
    """The transform of groups of 16 along `dim`, padded with zeros."""
    out = x.new_empty(padded_shape(x.shape, dim))
    _function("hadamard")(
        _HADAMARD(
            x.data_ptr(),
            *_around(x.shape, dim),
            signs.data_ptr(),
            out.data_ptr(),
            torch.get_num_threads(),
        )
    )
    return out


def padded_shape(shape: Sequence[int], dim: int) -> list[int]:
    """The shape with this dimension rounded up to a multiple of 16."""
    return [-(-n // SIZE) * SIZE if d == dim else n for d, n in enumerate(shape)]


def round_blocks(
    x: Tensor,
    numbers: Tensor,
    *,
    kind: str,
    dims: tuple[int, ...],
    blocks: tuple[int | None, ...],
    rounds_up: bool,
    tensor_scale: bool,
    key: Tensor | None,
    signs: Tensor | None,
) -> Tensor:
    """Blocks with a scale each; x: not empty. dims: at most two, not negative."""
    shape, transform = list(x.shape), (0, 0, 0)
    if signs is not None:
        transform, shape = _around(shape, dims[0]), padded_shape(shape, dims[0])
    out = x.new_empty(shape)
    _function("round_blocks")(
        _BLOCKS(
            x.data_ptr(),
            *_geometry(shape, dims, blocks),
            _KINDS[kind],
            rounds_up,
            tensor_scale,
            numbers.data_ptr(),
            _address(key),
            _address(signs),
            *transform,
            out.data_ptr(),
            torch.get_num_threads(),
        )
    )
    return out


def _geometry(
    shape: Sequence[int], dims: tuple[int, ...], blocks: tuple[int | None, ...]
) -> tuple[int, ...]:
    """outer, n0, mid, n1, inner, b0 and b1 of formats.cpp."""
    if not dims:
        return 1, 1, 1, math.prod(shape), 1, 1, 0
    sizes = [shape[d] if b is None else min(b, shape[d]) for d, b in zip(dims, blocks, strict=True)]
    if len(dims) == 1:
        outer, n, inner = _around(shape, dims[0])
        return outer, 1, 1, n, inner, 1, sizes[0]
    (d0, b0), (d1, b1) = sorted(zip(dims, sizes, strict=True))
    outer, n0, _ = _around(shape, d0)
    _, n1, inner = _around(shape, d1)
    return outer, n0, math.prod(shape[d0 + 1 : d1]), n1, inner, b0, b1
