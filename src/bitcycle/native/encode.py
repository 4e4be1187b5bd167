"""Ranges, codes, values and packed bits of tensors, computed by the native library.

Each function is one call into C++ and equal to the last bit to the function of the same purpose in
`bitcycle.ops`, which decides whether to call it. Tensors are dense (contiguous in memory in some
order of dimensions) and results have the layout of the input. A scale or range has one value, or
one for each index of a single dimension.
"""

from __future__ import annotations

import ctypes
import functools
from enum import IntEnum

import torch
from torch import Tensor, nn

from bitcycle.native.library import library

_PLAIN = (Tensor, nn.Parameter)
_POINTER, _INTEGER, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_BLOCK = (_INTEGER, _INTEGER, _INTEGER)

# The arguments of each C function, without the number of threads, which is the last one.
_ARGUMENTS = {
    "range": (_POINTER, *_BLOCK, _POINTER, _POINTER),
    "round": (_POINTER, *_BLOCK, *[_POINTER] * 4, _INTEGER, _POINTER),
    "quantize": (
        _POINTER, *_BLOCK, *[_POINTER] * 3, _FLOAT, _INTEGER, _POINTER, _INTEGER, *[_POINTER] * 4
    ),
    "decode": (_POINTER, _INTEGER, *_BLOCK, *[_POINTER] * 3),
    "pack_positive": (_POINTER, _INTEGER, _POINTER),
    "keep_positive": (_POINTER, _POINTER, _INTEGER, _INTEGER, _POINTER),
    "pack_nibbles": (_POINTER, _INTEGER, _POINTER),
    "unpack_nibbles": (_POINTER, _INTEGER, _INTEGER, _POINTER),
}  # fmt: skip


class Rule(IntEnum):
    """How a range becomes a grid, as in encode.cpp."""

    FROM_LOW = 0  # the lowest value is on the grid
    WITH_ZERO = 1  # the range includes 0, which is on the grid
    SYMMETRIC = 2  # around 0, without the lowest code unless there are only two


_FORMS = {torch.float32: 0, torch.uint8: 1, torch.int8: 2}


class _Functions:
    """The C functions with their argument types."""

    def __init__(self, found: ctypes.CDLL) -> None:
        for name, arguments in _ARGUMENTS.items():
            getattr(found, f"bitcycle_{name}").argtypes = (*arguments, _INTEGER)
            getattr(found, f"bitcycle_{name}").restype = None
        self.range = found.bitcycle_range
        self.round = found.bitcycle_round
        self.quantize = found.bitcycle_quantize
        self.decode = found.bitcycle_decode
        self.pack_positive = found.bitcycle_pack_positive
        self.keep_positive = found.bitcycle_keep_positive
        self.pack_nibbles = found.bitcycle_pack_nibbles
        self.unpack_nibbles = found.bitcycle_unpack_nibbles
        self.noise_key = found.bitcycle_noise_key
        self.noise_key.argtypes = (_POINTER, _POINTER)
        self.noise_key.restype = None
        self.scalar = torch.empty((), dtype=torch.float32, device="cpu")  # for `empty_like`


@functools.cache
def _functions() -> _Functions | None:
    found = library()
    return None if found is None else _Functions(found)


def _call() -> _Functions:
    functions = _functions()
    assert functions is not None
    return functions


def is_available(x: Tensor, *dtypes: torch.dtype) -> bool:
    """Whether the library can read this tensor: on the CPU, strided, of one of these dtypes.

    While a graph is traced, under a dispatch mode or a function transform, and where autograd
    records, it cannot: they must see torch's operations.
    """
    if torch.compiler.is_compiling() or _functions() is None:
        return False
    return (
        x.dtype in dtypes
        and type(x) in _PLAIN
        and x.is_cpu
        and x.layout is torch.strided
        and not (x.requires_grad and torch.is_grad_enabled())
        and not x.is_neg()
        and torch._C._len_torch_dispatch_stack() == 0
        and not torch._C._are_functorch_transforms_active()
        and torch._C._get_tracing_state() is None
    )


def is_per_channel(x: Tensor, scale: Tensor, offset: Tensor, *scalars: Tensor) -> bool:
    """Whether a grid is float32 with one scale and offset, or one per index of a dimension of `x`.

    scalars: what all channels share.
    """
    if scale.dtype is not torch.float32 or offset.dtype is not torch.float32:
        return False
    if any(each.dtype is not torch.float32 or each.dim() for each in scalars):
        return False
    if scale.dim() == 0:
        return offset.dim() == 0
    if scale.dim() != x.dim() or scale.shape != offset.shape:
        return False
    count = scale.numel()
    is_one_dimension = count == 1 or (count, count) in zip(scale.shape, x.shape, strict=True)
    return is_one_dimension and scale.is_contiguous() and offset.is_contiguous()


def _block(x: Tensor, scale: Tensor) -> tuple[int, int, int]:
    """The memory of `x` as (outer, channels, inner), with the channels of `scale`."""
    count, size = scale.numel(), x.numel()
    if count == 1:
        return 1, 1, size
    if size == 0:
        return 1, count, 0
    inner = x.stride(scale.shape.index(count))
    return size // (count * inner), count, inner


def value_range(x: Tensor, keep: int | None = None) -> tuple[Tensor, Tensor]:
    """The lowest and highest value of a tensor that is not empty, or of each index of `keep`."""
    call = _call()
    if keep is None:
        low = torch.empty_like(call.scalar)
    else:
        low = x.new_empty([n if d == keep else 1 for d, n in enumerate(x.shape)])
    high = torch.empty_like(low)
    call.range(
        x.data_ptr(), *_block(x, low), low.data_ptr(), high.data_ptr(), torch.get_num_threads()
    )
    return low, high


def round_to_grid(
    x: Tensor,
    scale: Tensor,
    offset: Tensor,
    levels: Tensor,
    key: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """Values (float32) or codes (uint8, int8) on the grid; key: for stochastic rounding."""
    out = torch.empty_like(x, dtype=dtype)
    _call().round(
        x.data_ptr(),
        *_block(x, scale),
        scale.data_ptr(),
        offset.data_ptr(),
        levels.data_ptr(),
        None if key is None else key.data_ptr(),
        _FORMS[dtype],
        out.data_ptr(),
        torch.get_num_threads(),
    )
    return out


def quantize(
    x: Tensor,
    low: Tensor,
    high: Tensor,
    levels: Tensor,
    rule: Rule,
    *,
    floor: float = 0.0,
    key: Tensor | None = None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The grid of a range, and the tensor on it: values or codes, scale, offset, half.

    levels: int32. The scale of codes is 0 where every value is the offset.
    """
    call = _call()
    out = torch.empty_like(x, dtype=dtype)
    scale, half = torch.empty_like(low), torch.empty_like(call.scalar)
    offset = low if rule is Rule.FROM_LOW else torch.empty_like(low)
    call.quantize(
        x.data_ptr(),
        *_block(x, low),
        low.data_ptr(),
        high.data_ptr(),
        levels.data_ptr(),
        floor,
        rule,
        None if key is None else key.data_ptr(),
        _FORMS[dtype],
        out.data_ptr(),
        scale.data_ptr(),
        None if offset is low else offset.data_ptr(),
        half.data_ptr(),
        torch.get_num_threads(),
    )
    return out, scale, offset, half


def decode(codes: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
    """The values code * scale + offset of uint8 or int8 codes."""
    out = torch.empty_like(codes, dtype=torch.float32)
    _call().decode(
        codes.data_ptr(),
        codes.dtype is torch.int8,
        *_block(codes, scale),
        scale.data_ptr(),
        offset.data_ptr(),
        out.data_ptr(),
        torch.get_num_threads(),
    )
    return out


def noise_key(clock: Tensor) -> Tensor:
    """The two words of a key, from [base, step, call] (int32, contiguous)."""
    key = clock.new_empty(2)
    _call().noise_key(clock.data_ptr(), key.data_ptr())
    return key


def pack_positive(x: Tensor) -> Tensor:
    """The bit mask of a flat, contiguous float32 tensor."""
    words = x.new_empty((x.numel() + 31) // 32, dtype=torch.int32)
    _call().pack_positive(x.data_ptr(), x.numel(), words.data_ptr(), torch.get_num_threads())
    return words


def keep_positive(words: Tensor, g: Tensor) -> Tensor:
    """`g` (flat, float32, contiguous or one expanded value) where the bit is 1, else 0."""
    out = g.new_empty(g.numel())
    _call().keep_positive(
        words.data_ptr(),
        g.data_ptr(),
        g.stride(0) == 0,
        g.numel(),
        out.data_ptr(),
        torch.get_num_threads(),
    )
    return out


def pack_nibbles(codes: Tensor) -> Tensor:
    """Flat, contiguous codes of at most 4 bits, two per byte."""
    out = codes.new_empty((codes.numel() + 1) // 2, dtype=torch.uint8)
    _call().pack_nibbles(codes.data_ptr(), codes.numel(), out.data_ptr(), torch.get_num_threads())
    return out


def unpack_nibbles(packed: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """The first `count` codes of `pack_nibbles`; dtype: uint8 or int8."""
    out = packed.new_empty(count, dtype=dtype)
    _call().unpack_nibbles(
        packed.data_ptr(), count, dtype is torch.int8, out.data_ptr(), torch.get_num_threads()
    )
    return out
