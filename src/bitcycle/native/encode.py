"""Ranges, codes, values and packed bits of tensors, computed by the native library.

Each function is one call into C++ and equal to the last bit to the function of the same purpose in
`bitcycle.ops`, which decides whether to call it. Tensors are dense (contiguous in memory in some
order of dimensions) and results have the layout of the input. A scale or range has one value, or
one for each index of a single dimension. A bfloat16 tensor has the ranges, codes and values of the
same numbers in float32; these are float32 too.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from enum import IntEnum
from struct import Struct
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from bitcycle.native.library import library

PLAIN = (Tensor, nn.Parameter)
count_modes = torch._C._len_torch_dispatch_stack
is_transforming = torch._C._are_functorch_transforms_active
tracing_state = torch._C._get_tracing_state
_FORMS = {torch.float32: 0, torch.uint8: 1}
FLOATS = (torch.float32, torch.bfloat16)  # that the library reads

# The structs of encode.cpp and packing.cpp: ctypes takes longer for many arguments than for one.
_RANGE = Struct("PqqqPPqq").pack
_ROUND = Struct("PqqqPPPPqPqq").pack
_QUANTIZE = Struct("PqqqqPPPdqPqPPPPqq").pack
_DECODE = Struct("PqqqPPPq").pack
_MASK = Struct("PPPPdqqq").pack

_STRUCT, _POINTER, _INTEGER = ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64
_ARGUMENTS = {
    "range": (_STRUCT,),
    "round": (_STRUCT,),
    "quantize": (_STRUCT,),
    "decode": (_STRUCT,),
    "pack_positive": (_STRUCT,),
    "keep_positive": (_STRUCT,),
    "dropout": (_STRUCT,),
    "pack_nibbles": (_POINTER, _INTEGER, _POINTER, _INTEGER),
    "unpack_nibbles": (_POINTER, _INTEGER, _POINTER, _INTEGER),
    "noise_key": (_POINTER, _POINTER),
    "count_up": (_POINTER, _POINTER, _INTEGER, _POINTER),
    "flag_nonfinite": (_POINTER, _POINTER, _POINTER, _INTEGER),
    "observe": (_POINTER, _POINTER, _POINTER, ctypes.c_double),
}


class Rule(IntEnum):
    """How a range becomes a grid, as in encode.cpp."""

    FROM_LOW = 0  # the lowest value is on the grid
    WITH_ZERO = 1  # the range includes 0, which is on the grid
    SYMMETRIC = 2  # around 0, without the lowest code unless there are only two
    POWER = 3  # the same with a step that is a power of two


class _Functions:
    """The C functions with their argument types."""

    range: Callable[..., None]
    round: Callable[..., None]
    quantize: Callable[..., None]
    decode: Callable[..., None]
    pack_positive: Callable[..., None]
    keep_positive: Callable[..., None]
    dropout: Callable[..., None]
    pack_nibbles: Callable[..., None]
    unpack_nibbles: Callable[..., None]
    noise_key: Callable[..., None]
    count_up: Callable[..., None]
    flag_nonfinite: Callable[..., None]
    observe: Callable[..., None]

    def __init__(self, found: ctypes.CDLL) -> None:
        for name, arguments in _ARGUMENTS.items():
            function = getattr(found, f"bitcycle_{name}")
            function.argtypes, function.restype = arguments, None
            setattr(self, name, function)
        # of `empty_like`, which is faster than `empty`
        self.scalar = torch.empty((), dtype=torch.float32, device="cpu")
        self.key = torch.empty(2, dtype=torch.int32, device="cpu")


@functools.cache
def _functions() -> _Functions | None:
    found = library()
    return None if found is None else _Functions(found)


_call = cast(Callable[[], _Functions], _functions)  # where the library is known to be there


def is_available(x: Tensor, *dtypes: torch.dtype) -> bool:
    """Whether the library can read this tensor: on the CPU, strided, of one of these dtypes.

    While a graph is traced, under a dispatch mode or a function transform, and where autograd
    records, it cannot: they must see torch's operations.
    """
    if torch.compiler.is_compiling() or _functions() is None:
        return False
    return (
        x.dtype in dtypes
        and type(x) in PLAIN
        and x.is_cpu
        and x.layout is torch.strided
        and not (x.requires_grad and torch.is_grad_enabled())
        and not x.is_neg()
        and not count_modes()
        and not is_transforming()
        and tracing_state() is None
    )


def is_per_channel(x: Tensor, scale: Tensor, offset: Tensor, *scalars: Tensor) -> bool:
    """Whether a grid is float32 with one scale and offset, or one per index of a dimension of `x`.

    scalars: what all channels share.
    """
    if scale.dtype is not torch.float32 or offset.dtype is not torch.float32:
        return False
    for each in scalars:
        if each.dtype is not torch.float32 or each.dim():
            return False
    num_dims = scale.dim()
    if num_dims == 0:
        return offset.dim() == 0
    if num_dims != x.dim() or scale.shape != offset.shape:
        return False
    count = scale.numel()
    if count != 1 and (count, count) not in zip(scale.shape, x.shape, strict=True):
        return False
    return scale.is_contiguous() and offset.is_contiguous()


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
    low, high = _new_range(x, keep)
    _call().range(
        _RANGE(
            x.data_ptr(),
            *_block(x, low),
            low.data_ptr(),
            high.data_ptr(),
            torch.get_num_threads(),
            x.dtype is torch.bfloat16,
        )
    )
    return low, high


def _new_range(x: Tensor, keep: int | None) -> tuple[Tensor, Tensor]:
    if keep is None:
        low = torch.empty_like(_call().scalar)
    else:
        shape = [1] * x.dim()
        shape[keep] = x.shape[keep]
        low = x.new_empty(shape, dtype=torch.float32)
    return low, torch.empty_like(low)


def round_to_grid(
    x: Tensor,
    scale: Tensor,
    offset: Tensor,
    levels: Tensor,
    key: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """Values (float32) or codes (uint8) on the grid; key: for stochastic rounding."""
    out = torch.empty_like(x, dtype=dtype)
    _call().round(
        _ROUND(
            x.data_ptr(),
            *_block(x, scale),
            scale.data_ptr(),
            offset.data_ptr(),
            levels.data_ptr(),
            0 if key is None else key.data_ptr(),
            _FORMS[dtype],
            out.data_ptr(),
            torch.get_num_threads(),
            x.dtype is torch.bfloat16,
        )
    )
    return out


class OnGrid(NamedTuple):
    """A tensor on the grid of a range."""

    numbers: Tensor  # values or codes
    scale: Tensor  # of codes 0 where every value is the offset
    offset: Tensor
    half: Tensor
    low: Tensor
    high: Tensor


def quantize(
    x: Tensor,
    within: tuple[Tensor, Tensor] | int | None,
    levels: Tensor,
    rule: Rule,
    *,
    floor: float = 0.0,
    key: Tensor | None = None,
    dtype: torch.dtype,
) -> OnGrid:
    """The grid of a range, and the tensor on it.

    within: the range, or `keep` of `value_range` for the tensor's own. levels: int32.
    """
    call = _call()
    finds_range = not isinstance(within, tuple)
    low, high = within if isinstance(within, tuple) else _new_range(x, within)
    out = torch.empty_like(x, dtype=dtype)
    scale, half = torch.empty_like(low), torch.empty_like(call.scalar)
    offset = low if rule is Rule.FROM_LOW else torch.empty_like(low)
    call.quantize(
        _QUANTIZE(
            x.data_ptr(),
            *_block(x, low),
            finds_range,
            low.data_ptr(),
            high.data_ptr(),
            levels.data_ptr(),
            floor,
            rule,
            0 if key is None else key.data_ptr(),
            _FORMS[dtype],
            out.data_ptr(),
            scale.data_ptr(),
            0 if offset is low else offset.data_ptr(),
            half.data_ptr(),
            torch.get_num_threads(),
            x.dtype is torch.bfloat16,
        )
    )
    return OnGrid(out, scale, offset, half, low, high)


def decode(codes: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
    """The values code * scale + offset of uint8 codes."""
    out = torch.empty_like(codes, dtype=torch.float32)
    _call().decode(
        _DECODE(
            codes.data_ptr(),
            *_block(codes, scale),
            scale.data_ptr(),
            offset.data_ptr(),
            out.data_ptr(),
            torch.get_num_threads(),
        )
    )
    return out


def noise_key(clock: Tensor) -> Tensor:
    """The two words of a key, from [base, step, call] (int32, contiguous)."""
    call = _call()
    key = torch.empty_like(call.key)
    call.noise_key(clock.data_ptr(), key.data_ptr())
    return key


def count_up(numbers: Tensor, place: int) -> Tensor:
    """Add 1 to one of several int32 numbers in place and return a copy of all."""
    copy = torch.empty_like(numbers)
    at = numbers.data_ptr()
    _call().count_up(at + 4 * place, at, numbers.numel(), copy.data_ptr())
    return copy


def flag_nonfinite(flags: Tensor, place: int, low: Tensor, high: Tensor) -> None:
    """Turn one of several float32 flags NaN if a range (contiguous) is not finite."""
    at = flags.data_ptr() + 4 * place
    _call().flag_nonfinite(at, low.data_ptr(), high.data_ptr(), low.numel())


def observe(
    rows: Tensor,
    place: int,
    low: Tensor,
    high: Tensor,
    momentum: float,
    flags: Tensor | None = None,
    flag: int = 0,
) -> None:
    """Update the row [observations, lowest value, range] of a (rows, 3) tensor by a new range.

    flags: one of them turns NaN if the range is not finite.
    """
    at, ends = rows.data_ptr() + 12 * place, (low.data_ptr(), high.data_ptr())
    if flags is not None:
        _call().flag_nonfinite(flags.data_ptr() + 4 * flag, *ends, 1)
    _call().observe(at, *ends, momentum)


def pack_positive(x: Tensor, output: Tensor | None = None) -> Tensor:
    """The bit mask of a tensor of `FLOATS`, in memory order.

    output: gets max(x, 0); in the layout of `x`, or `x` itself.
    """
    words = _new_words(x)
    _call().pack_positive(_mask_call(x, 0 if output is None else output.data_ptr(), words))
    return words


def keep_positive(words: Tensor, g: Tensor, output: Tensor) -> Tensor:
    """Write `g` where the bit is 1, else 0; output: in the layout of `g`, or `g` itself."""
    _call().keep_positive(_mask_call(g, output.data_ptr(), words))
    return output


def drop(x: Tensor, drawn: Tensor, factor: float, output: Tensor) -> Tensor:
    """Write x * factor where uint8 draws are 1, else x * 0; return their bit mask.

    output: in the layout of `x` and `drawn`, or `x` itself.
    """
    words = _new_words(x)
    _call().dropout(_mask_call(x, output.data_ptr(), words, drawn.data_ptr(), factor))
    return words


def drop_again(words: Tensor, g: Tensor, factor: float) -> Tensor:
    """`drop` with the draws of a mask."""
    output = torch.empty_like(g)
    _call().dropout(_mask_call(g, output.data_ptr(), words, 0, factor))
    return output


def _new_words(x: Tensor) -> Tensor:
    return x.new_empty((x.numel() + 31) // 32, dtype=torch.int32)


def _mask_call(x: Tensor, output: int, words: Tensor, drawn: int = 0, factor: float = 0.0) -> bytes:
    return _MASK(
        x.data_ptr(),
        output,
        words.data_ptr(),
        drawn,
        factor,
        x.dtype is torch.bfloat16,
        x.numel(),
        torch.get_num_threads(),
    )


def pack_nibbles(codes: Tensor) -> Tensor:
    """Codes of at most 4 bits in memory order, two per byte."""
    count = codes.numel()
    out = codes.new_empty((count + 1) // 2, dtype=torch.uint8)
    _call().pack_nibbles(codes.data_ptr(), count, out.data_ptr(), torch.get_num_threads())
    return out


def unpack_nibbles(packed: Tensor, out: Tensor) -> Tensor:
    """Write the codes of `pack_nibbles` to `out`, uint8, in memory order."""
    threads = torch.get_num_threads()
    _call().unpack_nibbles(packed.data_ptr(), out.numel(), out.data_ptr(), threads)
    return out
