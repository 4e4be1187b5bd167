"""Matrices in FP8, MX and NVFP4 as `torch.nn.functional.scaled_mm` reads them on tensor cores.

Numbers are rounded as by `blocks.round_blocks`, to the last bit, and stored in 8 or 4 bits with the
summed axis last. Scales decode them:

    fp8     value = element scale         scale = 1 / s in float32; 1 of a block of zeros
    mx      value = element scale         scale = 2^E in e8m0
    nvfp4   value = element (scale g)     scale = s in e4m3

Both axes are padded by zeros, which have finite scales. Those of MX and NVFP4 are swizzled: 128
rows x 4 blocks stand together, and in such a tile the scale of row r and block c is at
16 (r mod 32) + 4 (r div 32) + c.

A matrix takes one launch; a scale of the whole tensor takes another before it, for the largest
magnitude. Elements are made as integers: GPUs before sm_89 have no 8-bit floats.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from bitcycle.gpu.arithmetic import INFINITE, NO_KEY, divide, load_key
from bitcycle.gpu.blocks import (
    FP8,
    KINDS,
    MX,
    around,
    find_amax,
    from_bits,
    load_amax,
    magnitude,
    make_scales,
    round_element,
    scale_of_block,
    scale_of_tensor,
    transform_groups,
)
from bitcycle.gpu.driver import launch
from bitcycle.gpu.grids import key_kind
from bitcycle.native.formats import SIZE

# what shares a scale: the tensor, a row, 128 x 128 elements, or a block of a row or of 16 rows
_TENSOR, _ROW, _SQUARE, _BLOCK = (tl.constexpr(n) for n in range(4))
_SPAN = 128  # of the summed axis, that a program encodes


class Matrix(NamedTuple):
    """A matrix (rows, summed), padded, in elements and the scales that decode them."""

    elements: Tensor  # float8_e4m3fn, float8_e5m2 or float4_e2m1fn_x2, two in a byte
    scales: Tensor  # float32 (fp8), float8_e8m0fnu (mx) or float8_e4m3fn (nvfp4)
    tensor_scale: Tensor | None  # of nvfp4: float32, one number


class _Tile(NamedTuple):
    """What shares a scale, and what a program reads at a time."""

    scope: tl.constexpr
    height: int  # rows that share a scale
    multiple: int  # of the summed axis
    rows: int
    blocks: int
    elements: int  # of a block


class _Storage(NamedTuple):
    """How elements are stored."""

    dtype: torch.dtype
    bits: int
    mantissa: int
    min_exponent: int


_STORAGE = {
    "e4m3": _Storage(torch.float8_e4m3fn, 8, 3, -6),
    "e5m2": _Storage(torch.float8_e5m2, 8, 2, -14),
    "e2m1": _Storage(torch.float4_e2m1fn_x2, 4, 1, 0),
}
_SCALES = {"fp8": torch.float32, "mx": torch.float8_e8m0fnu, "nvfp4": torch.float8_e4m3fn}


# -- elements and scales --------------------------------------------------------------------------


@triton.jit
def _code(value, MANTISSA: tl.constexpr, MIN_EXPONENT: tl.constexpr, BITS: tl.constexpr):
    """The bits of the element that has this value."""
    smallest: tl.constexpr = 2.0**MIN_EXPONENT
    a = from_bits(magnitude(value))
    is_small = a < smallest
    # with the leading one of `smallest`, a small mantissa stands where a normal one does
    u = magnitude(tl.where(is_small, a + smallest, a)) >> (23 - MANTISSA)
    code = u - ((MIN_EXPONENT + 126) << MANTISSA) - (is_small.to(tl.int32) << MANTISSA)
    sign = (value.to(tl.int32, bitcast=True) >> 31) & 1
    return code | (sign << (BITS - 1))


@triton.jit
def _invert(amax, back):
    """The fp8 scale that decodes."""
    return tl.where(amax == 0, 1.0, divide(1.0, back))


@triton.jit
def _store_scales(
    scales, amax, back, of_tensor, r, c, padded, columns, scale_row, scale_column,
    KIND: tl.constexpr, HEIGHT: tl.constexpr,
):  # fmt: skip
    """Scales of rows r (R, 1, 1) and blocks c (1, C, 1); back: as of `make_scales`."""
    if KIND == FP8:
        at = r // HEIGHT * scale_row + c * scale_column
        tl.store(scales + at, _invert(amax, back), mask=(r < padded) & (c < columns))
    else:
        if KIND == MX:
            code = magnitude(back) >> 23  # 255 of a NaN
        else:
            s = scale_of_block(amax, scale_of_tensor(of_tensor))
            code = (magnitude(s) >> 20) - ((127 - 7) << 3)
            code = tl.where(back == back, code, 0x7F)
        tile = r // 128 * (columns // 4) + c // 4
        at = tile * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4
        tl.store(scales + at, code.to(tl.uint8), mask=c < columns)


# -- matrices -------------------------------------------------------------------------------------


@triton.jit
def _load_tile(
    x, signs, r, k, rows, length, row_stride, step,
    HAS_TRANSFORM: tl.constexpr, R: tl.constexpr, C: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    is_inside = (r < rows) & (k < length)
    v = tl.load(x + r * row_stride + k * step, mask=is_inside, other=0.0).to(tl.float32)
    if HAS_TRANSFORM:
        v = tl.reshape(transform_groups(tl.reshape(v, (R * C, B)), signs, R * C), (R, C, B))
    return v


@triton.jit
def _reduce(found, HEIGHT: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """The largest of every block (R, C, 1), which has HEIGHT rows."""
    amax = tl.max(found, 2, keep_dims=True)
    if HEIGHT > 1:
        amax = tl.max(tl.reshape(amax, (R // HEIGHT, HEIGHT, C)), 1, keep_dims=True)
        amax = tl.reshape(tl.broadcast_to(amax, (R // HEIGHT, HEIGHT, C)), (R, C, 1))
    return amax


@triton.jit
def _raise_flag(flag, amax, HAS_FLAG: tl.constexpr):
    if HAS_FLAG:
        tl.store(flag, float("nan"), mask=tl.max(amax) >= INFINITE)


@triton.jit
def _encode_scaled(
    x, elements, scales, tensor_scale, parts, numbers, key, signs, flag,
    rows, length, summed, row_stride, step, number_stride, padded, width, columns, scale_row,
    scale_column, across, num_parts,
    KIND: tl.constexpr, ROUNDS_UP: tl.constexpr, SCOPE: tl.constexpr, HEIGHT: tl.constexpr,
    KEY: tl.constexpr, HAS_PARTS: tl.constexpr, HAS_TRANSFORM: tl.constexpr,
    HAS_FLAG: tl.constexpr, BITS: tl.constexpr, MANTISSA: tl.constexpr,
    MIN_EXPONENT: tl.constexpr, SPAN: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
    B: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Write R rows of a span of the summed axis, C blocks of B elements at a time.

    rows, length: of x, whose element (r, k) is at r row_stride + k step. summed: the length after
    the transform; noise has the number r number_stride + k step. padded, width: rows and length of
    the result. columns: scales along it; across: programs. SPAN: of a program, 0 for all of the
    width. HEIGHT: rows that share a scale.
    """
    program = tl.program_id(0)
    r = (program // across * R + tl.arange(0, R)).to(tl.int64)[:, None, None]
    c = tl.arange(0, C)[None, :, None]
    e = tl.arange(0, B)[None, None, :]
    first = (program % across).to(tl.int64) * SPAN
    end = SPAN if SPAN > 0 else width

    of_tensor = 0
    if HAS_PARTS:
        of_tensor = load_amax(parts, num_parts, P)
    if SCOPE == _TENSOR:
        amax = tl.zeros([1, 1, 1], tl.int32) + of_tensor
    elif SCOPE != _BLOCK:
        found = tl.zeros([R, C, B], tl.int32)
        for start in range(0, end, C * B):
            k = first + start + c * B + e
            v = _load_tile(x, signs, r, k, rows, length, row_stride, step, False, R, C, B)
            found = tl.maximum(found, magnitude(v))
        amax = _reduce(found, HEIGHT, R, C)
    if SCOPE != _BLOCK:
        _raise_flag(flag, amax, HAS_FLAG)
    k0 = 0
    k1 = 0
    if KEY != NO_KEY:
        k0, k1 = load_key(key, KEY)

    for start in range(0, end, C * B):
        k = first + start + c * B + e
        v = _load_tile(x, signs, r, k, rows, length, row_stride, step, HAS_TRANSFORM, R, C, B)
        if SCOPE == _BLOCK:
            amax = _reduce(magnitude(v), HEIGHT, R, C)
            _raise_flag(flag, amax, HAS_FLAG)
        factor, back = make_scales(amax, of_tensor, numbers, KIND, ROUNDS_UP, HAS_PARTS)
        rounded = round_element(v * factor, numbers, r * number_stride + k * step, k0, k1, KEY)
        is_element = (r < rows) & (k < summed) & (back == back)
        code = tl.where(is_element, _code(rounded, MANTISSA, MIN_EXPONENT, BITS), 0)
        place = k
        if BITS == 4:
            low, high = tl.split(tl.reshape(code, (R, C, B // 2, 2)))
            code = low | (high << 4)
            place = (first + start + c * B) // 2 + tl.arange(0, B // 2)[None, None, :]
        pitch = width // (8 // BITS)
        is_stored = (r < padded) & (place < pitch)
        tl.store(elements + r * pitch + place, code.to(tl.uint8), mask=is_stored)
        if SCOPE == _BLOCK:
            column = (first + start) // B + c
            _store_scales(
                scales, amax, back, of_tensor, r, column, padded, columns, scale_row,
                scale_column, KIND, 1,
            )  # fmt: skip

    if SCOPE != _BLOCK:
        _, back = make_scales(amax, of_tensor, numbers, KIND, ROUNDS_UP, HAS_PARTS)
        if SCOPE != _TENSOR:
            _store_scales(
                scales, amax, back, of_tensor, r, program % across + c, padded, columns,
                scale_row, scale_column, KIND, HEIGHT,
            )  # fmt: skip
        elif program == 0:
            tl.store(scales + 0 * amax, _invert(amax, back))
    elif HAS_PARTS:
        tl.store(tensor_scale, scale_of_tensor(of_tensor), mask=program == 0)


def encode(
    x: Tensor,
    numbers: Tensor,
    *,
    kind: str,
    dims: tuple[int, ...],
    blocks: tuple[int | None, ...],
    dim: int,
    element: str,
    rounds_up: bool = False,
    key: Tensor | None = None,
    signs: Tensor | None = None,
    flag: Tensor | None = None,
) -> Matrix | None:
    """A matrix for a product that sums over `dim`; x: contiguous, not empty.

    element: how elements are stored, "e4m3", "e5m2" or "e2m1", which has all values of `numbers`.
    signs: for a transform of groups of 16 along `dim`. Others: as of `blocks.round_blocks`.
    """
    assert kind == "nvfp4" or signs is None
    rows, length = x.shape if dim == 1 else x.mT.shape
    row_stride, step = (length, 1) if dim == 1 else (1, rows)
    summed = length if signs is None else _up(length, SIZE)
    tile, storage = _tile_of(kind, dims, blocks, dim), _STORAGE[element]
    padded, width = _up(rows, 128 if tile.scope == _SQUARE else 16), _up(summed, tile.multiple)
    elements = x.new_empty((padded, width * storage.bits // 8), dtype=torch.uint8)
    scales, columns = _new_scales(x, kind, tile, padded, width)
    across = triton.cdiv(width, _SPAN)
    if tile.scope in (_ROW, _SQUARE):
        across = columns
    parts = tensor_scale = None
    if kind == "nvfp4" or tile.scope == _TENSOR:
        parts = find_amax(x, signs, around(x.shape, dim))
        if parts is None:
            return None
    if kind == "nvfp4":
        tensor_scale = x.new_empty((), dtype=torch.float32)
    num_parts = 1 if parts is None else parts.numel()
    has_rows = kind == "fp8"  # others: tiles of scales
    is_done = launch(
        _encode_scaled, triton.cdiv(padded if has_rows else _up(rows, 128), tile.rows) * across,
        x, elements, scales, tensor_scale, parts, numbers, key, signs, flag,
        rows, length, summed, row_stride, step, summed if dim == 1 else 1, padded, width, columns,
        *(scales.stride() if scales.dim() == 2 else (0, 0)), across, num_parts,
        KIND=KINDS[kind], ROUNDS_UP=rounds_up, SCOPE=tile.scope.value, HEIGHT=tile.height,
        KEY=key_kind(key), HAS_PARTS=parts is not None, HAS_TRANSFORM=signs is not None,
        HAS_FLAG=flag is not None, BITS=storage.bits, MANTISSA=storage.mantissa,
        MIN_EXPONENT=storage.min_exponent, SPAN=0 if tile.scope == _ROW else _SPAN,
        R=tile.rows, C=tile.blocks, B=tile.elements, P=triton.next_power_of_2(num_parts),
        num_warps=8,
    )  # fmt: skip
    if not is_done:
        return None
    if tile.scope == _SQUARE:
        scales = scales.t()
    return Matrix(elements.view(storage.dtype), scales.view(_SCALES[kind]), tensor_scale)


def _tile_of(kind: str, dims: tuple[int, ...], blocks: tuple[int | None, ...], dim: int) -> _Tile:
    if kind == "mx":
        assert (dims, blocks) == ((dim,), (32,)), (dims, blocks)
        return _Tile(_BLOCK, 1, 32, 32, 4, 32)
    if kind == "nvfp4":
        assert set(blocks) == {SIZE}, blocks
        return _Tile(_BLOCK, 1 if len(dims) == 1 else SIZE, 32, 32, 8, SIZE)
    if not dims:
        return _Tile(_TENSOR, 1, 16, 32, 1, 128)
    if len(dims) == 2:
        return _Tile(_SQUARE, 128, 128, 128, 1, 32)
    if blocks == (None,):  # neighbours in memory are of one row, or of several
        return _Tile(_ROW, 1, 16, *((8, 1, 512) if dim == 1 else (32, 1, 128)))
    return _Tile(_BLOCK, 1, 128, 32, 1, 128)


def _new_scales(x: Tensor, kind: str, tile: _Tile, padded: int, width: int) -> tuple[Tensor, int]:
    """Memory for scales, by row first, and how many there are along the summed axis."""
    if kind != "fp8":
        columns = _up(width // tile.elements, 4)
        return x.new_empty(_up(padded, 128) * columns, dtype=torch.uint8), columns
    if tile.scope == _TENSOR:
        return x.new_empty((), dtype=torch.float32), 1
    if tile.scope == _ROW:
        return x.new_empty((padded, 1), dtype=torch.float32), 1
    if tile.scope == _SQUARE:
        columns = _up(width // 128, 4)
        return x.new_empty((triton.cdiv(padded, 128), columns), dtype=torch.float32), columns
    columns = width // 128
    return x.new_empty((columns, padded), dtype=torch.float32).t(), columns


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
