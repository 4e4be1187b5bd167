"""Tensors rounded to number formats by Triton kernels: bf16, fp16, FP8, MX and NVFP4.

Functions have the names and results of `native.formats`, to the last bit; each returns None where a
kernel cannot run. Blocks whose scale is their own take one launch; a scale of the whole tensor
takes another before it, for the largest magnitude. Elements of any of `FLOATS` are read in float32,
and results are float32. `numbers` (int32) are read on the device.
"""

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from bitcycle.gpu.arithmetic import INFINITE, NO_KEY, divide, load_key, rint, to_dtype, uniform
from bitcycle.gpu.driver import FLOATS as FLOATS
from bitcycle.gpu.driver import launch
from bitcycle.gpu.grids import MAX_PARTS, key_kind
from bitcycle.native.formats import SIZE, padded_shape

KINDS = {"fp8": 0, "mx": 1, "nvfp4": 2}
FP8, MX = tl.constexpr(0), tl.constexpr(1)
_SIZE = tl.constexpr(SIZE)
_TILE = 1024  # elements of a program's step
_NO_TENSOR, _SCALE, _BLOCK = (tl.constexpr(n) for n in range(3))  # what the tensor's amax is for

_MAGNITUDE = tl.constexpr(0x7FFFFFFF)
_FRACTION = tl.constexpr(0x7FFFFF)
_LARGEST = tl.constexpr(torch.finfo(torch.float32).max)
_LEAST_TENSOR_SCALE = tl.constexpr(2.0**-121)  # as in `formats.rounding`


# -- elements -------------------------------------------------------------------------------------


@triton.jit
def magnitude(x):
    """The bits of |x|."""
    return x.to(tl.int32, bitcast=True) & _MAGNITUDE


@triton.jit
def from_bits(bits):
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _power(exponent):
    """2^exponent from -127, a subnormal, to 127."""
    return from_bits(tl.maximum((exponent + 127) << 23, 0x400000))


@triton.jit
def round_element(y, numbers, number, k0, k1, KEY: tl.constexpr):
    """The nearest element to a finite y, or one of the two around it by the noise of its number."""
    mantissa, min_exponent = tl.load(numbers), tl.load(numbers + 1)
    top = from_bits(tl.load(numbers + 2))
    u = magnitude(y)
    least = (min_exponent + 127) << 23
    normal = from_bits((u & _FRACTION) | ((mantissa + 127) << 23))
    small = from_bits(u) * _power(-min_exponent) * _power(mantissa)
    t = tl.where(u >= least, normal, small)
    if KEY == NO_KEY:
        q = rint(t)
    else:
        whole = t.to(tl.int32).to(tl.float32)  # tl.floor would flush subnormals
        q = whole + (uniform(number, k0, k1) < (t - whole) - 0.5).to(tl.float32)
    step = from_bits(tl.maximum(u & INFINITE, least))
    value = tl.minimum(q * _power(-mantissa) * step, top)
    sign = y.to(tl.int32, bitcast=True) & ~_MAGNITUDE
    return from_bits(value.to(tl.int32, bitcast=True) | sign)


@triton.jit
def _round_elements(
    x, out, numbers, key, flag, count,
    KEY: tl.constexpr, HAS_FLAG: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64) * L + tl.arange(0, L)
    v = tl.load(x + i, mask=i < count, other=0.0).to(tl.float32)
    if HAS_FLAG:
        tl.store(flag, float("nan"), mask=tl.max(magnitude(v), 0) >= INFINITE)
    k0 = 0
    k1 = 0
    if KEY != NO_KEY:
        k0, k1 = load_key(key, KEY)
    rounded = round_element(v, numbers, i, k0, k1, KEY)
    tl.store(out + i, tl.where(magnitude(v) >= INFINITE, v, rounded), mask=i < count)


def round_elements(
    x: Tensor, numbers: Tensor, key: Tensor | None, flag: Tensor | None = None
) -> Tensor | None:
    """Elements without a scale, in memory order; x: dense. key: for stochastic rounding.

    flag: as in `to_bf16`.
    """
    out = torch.empty_like(x, dtype=torch.float32)
    is_done = launch(
        _round_elements, triton.cdiv(x.numel(), _TILE), x, out, numbers, key, flag, x.numel(),
        KEY=key_kind(key), HAS_FLAG=flag is not None, L=_TILE,
    )  # fmt: skip
    return out if is_done else None


@triton.jit
def _to_bf16(x, out, flag, count, HAS_FLAG: tl.constexpr, IS_WRITTEN: tl.constexpr,
             L: tl.constexpr):  # fmt: skip
    i = tl.program_id(0).to(tl.int64) * L + tl.arange(0, L)
    v = tl.load(x + i, mask=i < count, other=0.0).to(tl.float32)
    bits = v.to(tl.int32, bitcast=True)
    is_finite = (bits & _MAGNITUDE) < INFINITE
    if HAS_FLAG:
        # programs that find one all write the same
        is_wrong = tl.max(tl.where(is_finite, 0, 1), 0) > 0
        tl.store(flag, float("nan"), mask=is_wrong)
    if IS_WRITTEN:
        rounded = to_dtype(v, tl.bfloat16)
        top = tl.where(v < 0, -3.3895313892515355e38, 3.3895313892515355e38).to(tl.bfloat16)
        overflows = is_finite & ((bits & _MAGNITUDE) >= 0x7F7F8000)
        tl.store(out + i, tl.where(overflows, top, rounded), mask=i < count)


def to_bf16(x: Tensor, flag: Tensor | None) -> Tensor | None:
    """Elements in bfloat16; x: dense, a bfloat16 one is returned.

    flag: a float32 number that turns NaN if an element is not finite.
    """
    is_half = x.dtype is torch.bfloat16
    out = x if is_half else torch.empty_like(x, dtype=torch.bfloat16)
    is_done = launch(
        _to_bf16, triton.cdiv(x.numel(), _TILE), x, out, flag, x.numel(),
        HAS_FLAG=flag is not None, IS_WRITTEN=not is_half, L=_TILE,
    )  # fmt: skip
    return out if is_done else None


# -- Hadamard transform ---------------------------------------------------------------------------


@triton.jit
def _butterfly(v, G: tl.constexpr, HALF: tl.constexpr):
    """a + b and a - b of numbers that are HALF apart, in groups (G, 16)."""
    pairs = tl.permute(tl.reshape(v, (G, _SIZE // 2 // HALF, 2, HALF)), (0, 1, 3, 2))
    a, b = tl.split(pairs)
    pairs = tl.permute(tl.join(a + b, a - b), (0, 1, 3, 2))
    return tl.reshape(pairs, (G, _SIZE))


@triton.jit
def transform_groups(v, signs, G: tl.constexpr):
    """Groups (G, 16); adds in the order of the native code."""
    v = v * tl.load(signs + tl.arange(0, _SIZE))[None, :]
    v = _butterfly(v, G, 1)
    v = _butterfly(v, G, 2)
    v = _butterfly(v, G, 4)
    return _butterfly(v, G, 8) * 0.25


@triton.jit
def _load_group(x, signs, g, groups, num_groups, n, inner, G: tl.constexpr):
    """Transformed groups g (G, 1) of (outer, n, inner), and where they are in the padded tensor."""
    i = tl.arange(0, _SIZE)[None, :]
    column = g % inner
    k = g // inner % groups * _SIZE + i
    o = g // inner // groups
    is_inside = (g < num_groups) & (k < n)
    v = tl.load(x + (o * n + k) * inner + column, mask=is_inside, other=0.0).to(tl.float32)
    return transform_groups(v, signs, G), (o * groups * _SIZE + k) * inner + column


@triton.jit
def _hadamard(x, out, signs, groups, num_groups, n, inner, G: tl.constexpr):
    g = (tl.program_id(0).to(tl.int64) * G + tl.arange(0, G))[:, None]
    v, at = _load_group(x, signs, g, groups, num_groups, n, inner, G)
    tl.store(out + at, v, mask=g < num_groups)


def hadamard(x: Tensor, dim: int, signs: Tensor) -> Tensor | None:
    """The transform of groups of 16 along `dim`, padded with zeros; x: contiguous."""
    outer, n, inner = around(x.shape, dim)
    groups = triton.cdiv(n, SIZE)
    total, tile = outer * groups * inner, _TILE // SIZE
    out = x.new_empty(padded_shape(x.shape, dim), dtype=torch.float32)
    programs = triton.cdiv(total, tile)
    is_done = launch(_hadamard, programs, x, out, signs, groups, total, n, inner, G=tile)
    return out if is_done else None


# -- the tensor's largest magnitude ---------------------------------------------------------------


@triton.jit
def _amax(x, parts, count, num_chunks, num_parts, L: tl.constexpr):
    """Write the bits of the largest magnitude of every part."""
    part = tl.program_id(0)
    found = tl.zeros([L], tl.int32)
    for chunk in range(part, num_chunks, num_parts):
        i = tl.cast(chunk, tl.int64) * L + tl.arange(0, L)
        v = tl.load(x + i, mask=i < count, other=0.0).to(tl.float32)
        found = tl.maximum(found, magnitude(v))
    tl.store(parts + part, tl.max(found, 0))


@triton.jit
def _amax_of_transform(
    x, parts, signs, groups, num_groups, n, inner, num_chunks, num_parts, G: tl.constexpr
):
    part = tl.program_id(0)
    found = tl.zeros([G, _SIZE], tl.int32)
    for chunk in range(part, num_chunks, num_parts):
        g = (tl.cast(chunk, tl.int64) * G + tl.arange(0, G))[:, None]
        v, _ = _load_group(x, signs, g, groups, num_groups, n, inner, G)
        found = tl.maximum(found, tl.where(g < num_groups, magnitude(v), 0))
    tl.store(parts + part, tl.max(tl.max(found, 1), 0))


def find_amax(x: Tensor, signs: Tensor | None, transform: tuple[int, int, int]) -> Tensor | None:
    """The bits of the largest magnitudes of parts of a tensor, or of its transform."""
    if signs is None:
        num_chunks = triton.cdiv(x.numel(), _TILE)
    else:
        outer, n, inner = transform
        groups = triton.cdiv(n, SIZE)
        total = outer * groups * inner
        num_chunks = triton.cdiv(total, _TILE // SIZE)
    num_parts = min(MAX_PARTS, num_chunks)
    parts = x.new_empty(num_parts, dtype=torch.int32)
    if signs is None:
        sizes = (x.numel(), num_chunks, num_parts)
        return parts if launch(_amax, num_parts, x, parts, *sizes, L=_TILE) else None
    is_done = launch(
        _amax_of_transform, num_parts, x, parts, signs, groups, total, n, inner, num_chunks,
        num_parts, G=_TILE // SIZE,
    )  # fmt: skip
    return parts if is_done else None


# -- blocks ---------------------------------------------------------------------------------------


@triton.jit
def load_amax(parts, num_parts, P: tl.constexpr):
    """The largest of the magnitudes that `find_amax` found."""
    p = tl.arange(0, P)
    return tl.max(tl.load(parts + p, mask=p < num_parts, other=0), 0)


@triton.jit
def scale_of_tensor(amax):
    """g of nvfp4; NaN for a NaN."""
    g = tl.maximum(divide(from_bits(amax), 2688.0), _LEAST_TENSOR_SCALE)
    return tl.where(amax >= INFINITE, float("nan"), g)


@triton.jit
def scale_of_block(amax, g):
    """s of nvfp4, the nearest e4m3 number."""
    s = divide(divide(from_bits(amax), 6.0), g)
    bits = tl.minimum(tl.maximum(s, 0.015625), 448.0).to(tl.int32, bitcast=True)
    return from_bits((bits + 0x7FFFF + ((bits >> 20) & 1)) & ~0xFFFFF)


@triton.jit
def make_scales(
    amax, of_tensor, numbers,
    KIND: tl.constexpr, ROUNDS_UP: tl.constexpr, HAS_TENSOR_SCALE: tl.constexpr,
):  # fmt: skip
    """What multiplies numbers before their rounding and after it (fp8: divides); NaN for a NaN."""
    top = tl.load(numbers + 2)
    a = from_bits(amax)
    if KIND == FP8:
        factor = divide(from_bits(top), a)
        factor = tl.where(factor > _LARGEST, _LARGEST, factor)
        factor = tl.where(amax == 0, _LARGEST, factor)
        back = factor
    elif KIND == MX:
        exponent = tl.maximum((amax >> 23) - (top >> 23), -127)
        if ROUNDS_UP:
            is_above = a > from_bits(top) * _power(exponent)
            exponent = tl.minimum(exponent + is_above.to(tl.int32), 127)
        factor = _power(-exponent)
        back = _power(exponent)
    else:
        g = 1.0
        if HAS_TENSOR_SCALE:
            g = scale_of_tensor(of_tensor)
        s = scale_of_block(amax, g)
        factor = divide(divide(1.0, g), s)
        back = s * g
    return factor, tl.where(amax >= INFINITE, float("nan"), back)


@triton.jit
def _round_in_blocks(
    x, out, parts, numbers, key, signs, flag,
    num_blocks, n0, mid, n1, inner, tiles0, tiles1, b1, num_elements, num_parts, length,
    KIND: tl.constexpr, ROUNDS_UP: tl.constexpr, TENSOR: tl.constexpr, KEY: tl.constexpr,
    HAS_TRANSFORM: tl.constexpr, HAS_FLAG: tl.constexpr, IS_ONE_ROW: tl.constexpr,
    B0: tl.constexpr, B1: tl.constexpr, IS_COLUMNS: tl.constexpr,
    G: tl.constexpr, E: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Round G blocks, E elements of each at a time.

    A block has B0 x B1 elements of (n0, n1) in (outer, n0, mid, n1, inner), or b1 of n1. The
    fastest dimension of a tile is the elements, or the blocks if IS_COLUMNS. length: of n1 before
    the transform.
    """
    blocks = tl.program_id(0).to(tl.int64) * G + tl.arange(0, G)
    elements = tl.arange(0, E)
    if IS_COLUMNS:
        g = blocks[None, :]
        e = elements[:, None]
    else:
        g = blocks[:, None]
        e = elements[None, :]
    axis: tl.constexpr = 0 if IS_COLUMNS else 1
    column = g % inner
    tile1 = g // inner % tiles1
    m = g // inner // tiles1 % mid
    tile0 = g // inner // tiles1 // mid % tiles0
    row = g // inner // tiles1 // mid // tiles0 * n0  # of (outer, n0)

    of_tensor = 0
    if TENSOR != _NO_TENSOR:
        of_tensor = load_amax(parts, num_parts, P)
    if TENSOR == _BLOCK:
        amax = tl.zeros_like(g).to(tl.int32) + of_tensor
    else:
        found = tl.zeros([E, G] if IS_COLUMNS else [G, E], tl.int32)
        for start in range(0, num_elements, E):
            r = 0 * g + tile0 * (1 if IS_ONE_ROW else B0)
            k = tile1 * b1 + start + e
            if not IS_ONE_ROW:
                r = tile0 * B0 + (start + e) // B1
                k = tile1 * B1 + (start + e) % B1
            is_inside = (g < num_blocks) & (start + e < num_elements) & (r < n0) & (k < length)
            at = (((row + r) * mid + m) * length + k) * inner + column
            v = tl.load(x + at, mask=is_inside, other=0.0).to(tl.float32)
            if HAS_TRANSFORM:
                v = (
                    tl.trans(transform_groups(tl.trans(v), signs, G))
                    if IS_COLUMNS
                    else transform_groups(v, signs, G)
                )
            found = tl.maximum(found, magnitude(v))
        amax = tl.max(found, axis, keep_dims=True)
    if HAS_FLAG:
        tl.store(flag, float("nan"), mask=tl.max(tl.max(amax, 1), 0) >= INFINITE)
    factor, back = make_scales(amax, of_tensor, numbers, KIND, ROUNDS_UP, TENSOR == _SCALE)
    k0 = 0
    k1 = 0
    if KEY != NO_KEY:
        k0, k1 = load_key(key, KEY)
    for start in range(0, num_elements, E):
        r = 0 * g + tile0 * (1 if IS_ONE_ROW else B0)
        k = tile1 * b1 + start + e
        if not IS_ONE_ROW:
            r = tile0 * B0 + (start + e) // B1
            k = tile1 * B1 + (start + e) % B1
        is_inside = (g < num_blocks) & (start + e < num_elements) & (r < n0) & (k < n1)
        at = (((row + r) * mid + m) * length + k) * inner + column
        v = tl.load(x + at, mask=is_inside & (k < length), other=0.0).to(tl.float32)
        if HAS_TRANSFORM:
            v = (
                tl.trans(transform_groups(tl.trans(v), signs, G))
                if IS_COLUMNS
                else transform_groups(v, signs, G)
            )
        to = (((row + r) * mid + m) * n1 + k) * inner + column
        rounded = round_element(v * factor, numbers, to, k0, k1, KEY)
        value = divide(rounded, back) if KIND == FP8 else rounded * back
        tl.store(out + to, value, mask=is_inside)


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
    flag: Tensor | None = None,
) -> Tensor | None:
    """Blocks with a scale each; x: contiguous, not empty. dims: at most two, not negative.

    flag: as in `to_bf16`.
    """
    if signs is not None and (len(dims) != 1 or blocks != (SIZE,)):
        transformed = hadamard(x, dims[0], signs)  # groups are not blocks
        if transformed is None:
            return None
        x, signs = transformed, None
    shape, transform = list(x.shape), (0, 0, 0)
    if signs is not None:
        transform, shape = around(shape, dims[0]), padded_shape(shape, dims[0])
    parts = None
    if (kind == "nvfp4" and tensor_scale) or not dims:
        parts = find_amax(x, signs, transform)
        if parts is None:
            return None
    outer, n0, mid, n1, inner, b0, b1 = _geometry(shape, dims, blocks)
    tiles0, tiles1 = triton.cdiv(n0, b0), triton.cdiv(n1, b1)
    num_blocks, size = outer * tiles0 * mid * tiles1 * inner, b0 * b1
    step = min(_TILE, triton.next_power_of_2(size))
    tile = max(1, min(_TILE // step, triton.next_power_of_2(num_blocks)))
    num_parts = 1 if parts is None else parts.numel()
    of_tensor = _NO_TENSOR if parts is None else _SCALE if dims else _BLOCK
    out = x.new_empty(shape, dtype=torch.float32)
    is_done = launch(
        _round_in_blocks, triton.cdiv(num_blocks, tile), x, out, parts, numbers, key, signs,
        flag, num_blocks, n0, mid, n1, inner, tiles0, tiles1, b1, size, num_parts,
        n1 if signs is None else transform[1],
        KIND=KINDS[kind], ROUNDS_UP=rounds_up, TENSOR=of_tensor.value, KEY=key_kind(key),
        HAS_TRANSFORM=signs is not None, HAS_FLAG=flag is not None, IS_ONE_ROW=b0 == 1, B0=b0,
        B1=1 if b0 == 1 else b1, IS_COLUMNS=inner > 1, G=tile, E=step,
        P=triton.next_power_of_2(num_parts),
    )  # fmt: skip
    return out if is_done else None


def around(shape: Sequence[int], dim: int) -> tuple[int, int, int]:
    """The shape as (outer, that dimension, inner)."""
    return math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :])


def _geometry(
    shape: Sequence[int], dims: tuple[int, ...], blocks: tuple[int | None, ...]
) -> tuple[int, ...]:
    """outer, n0, mid, n1, inner, b0 and b1: blocks of b0 x b1 in (n0, n1).

    A tensor that is one block is cut into parts, which take its largest magnitude.
    """
    if not dims:
        return 1, 1, 1, math.prod(shape), 1, 1, _TILE
    sizes = [shape[d] if b is None else b for d, b in zip(dims, blocks, strict=True)]
    if len(dims) == 1:
        outer, n, inner = around(shape, dims[0])
        return outer, 1, 1, n, inner, 1, sizes[0]
    (d0, b0), (d1, b1) = sorted(zip(dims, sizes, strict=True))
    outer, n0, _ = around(shape, d0)
    _, n1, inner = around(shape, d1)
    return outer, n0, math.prod(shape[d0 + 1 : d1]), n1, inner, b0, b1
