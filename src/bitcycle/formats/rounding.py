"""Rounding to number formats: bf16, fp16, FP8, MX and NVFP4, nearest or stochastic.

    t = |y| / step,  q = rint(t) half to even, or floor(t) + (u < t - floor(t)), u in U(0, 1)
    element(y) = min(q step, max) with the sign of y

The step is a power of two: 2^(e - mantissa) with the exponent e of y, or the format's least one.
Kinds of blocks differ in the scale (a: the largest magnitude of a block):

    fp8     s = max / a                                   value = element(x s) / s
    mx      E = floor(log2 a) - floor(log2 max)           value = element(x 2^-E) 2^E
    nvfp4   g = amax / (448 * 6),  s = e4m3(a / 6 / g)    value = element(x ((1 / g) / s)) (s g)

`round_to` is the public function. The others compute in float32, are not differentiable, and take
the numbers of an element as a tensor: a new format of the same kind changes data, never a compiled
graph. The native library computes each in one call, GPU kernels in one or two launches, and plain
torch the same to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from bitcycle.bits import Bits
from bitcycle.formats.catalogue import Format
from bitcycle.gpu.driver import FLOATS
from bitcycle.native import formats as native
from bitcycle.native.formats import SIZE, padded_shape
from bitcycle.ops.affine import grid_step, round_nearest, round_stochastic, value_range
from bitcycle.ops.fused import blocks_for
from bitcycle.ops.layout import as_dense, in_layout_of, is_dense
from bitcycle.ops.noise import element_index, hash_ints, noise_key, uniform
from bitcycle.ops.state import flag_nonfinite

_MAGNITUDE, _INFINITE, _FRACTION = 0x7FFFFFFF, 0x7F800000, 0x7FFFFF  # bits of a float32
_LARGEST = torch.finfo(torch.float32).max
_LEAST_TENSOR_SCALE = 2.0**-121  # of NVFP4: (1 / g) / s stays finite for s = 2^-6

Rounding = Literal["nearest", "stochastic"]
Scale = Literal["floor", "rceil"]
Granularity = Literal["tensor", "row", "block"]


def round_to(
    x: Tensor,
    format: Format | str | int | None,
    dim: int = -1,
    *,
    rounding: Rounding = "nearest",
    scale: Scale = "floor",
    granularity: Granularity = "tensor",
    tensor_scale: bool = True,
    seed: int = 0,
) -> Tensor:
    """Return `x` rounded to a format, in the dtype of `x`. Not differentiable.

    format: a `Format`, its name, or a number of bits: the min-max grid of the tensor, as `sbm` has
        for activations. "fp32" and None return `x`.
    dim: the dimension along which blocks run; that of the sum in a product.
    rounding: "nearest" (ties to even) or "stochastic", by a hash of `seed` and element numbers.
    scale: of MX. "floor" clips the largest values of a block; with "rceil" nothing clips.
    granularity: of FP8. One scale per "tensor", per "row" along `dim` or per "block" of 128.
    tensor_scale: of NVFP4. False leaves the scales of blocks alone.

    A NaN or infinity makes its block NaN; under a scale of the whole tensor, all of it. In bf16 and
    fp16 it stays what it is. Finite values saturate.

    >>> x = torch.tensor([0.1, -0.3, 1.0, 5.0])
    >>> round_to(x, "bf16")
    tensor([ 0.1001, -0.3008,  1.0000,  5.0000])
    >>> round_to(x, "mxfp4")
    tensor([ 0.0000, -0.5000,  1.0000,  4.0000])
    >>> round_to(x, "nvfp4")
    tensor([ 0.0000, -0.4167,  0.8333,  5.0000])
    >>> round_to(x, "int4")
    tensor([ 0.0533, -0.3000,  1.1133,  5.0000])
    """
    bits = Bits.of(format, "format")
    _check_choice("rounding", rounding, ("nearest", "stochastic"))
    _check_choice("scale", scale, ("floor", "rceil"))
    _check_choice("granularity", granularity, ("tensor", "row", "block"))
    kind, name = bits.kind, f"int{bits}" if bits.kind == "integer" else str(bits)
    for option, value, usual, only in (
        ("scale", scale, "floor", "mx"),
        ("granularity", granularity, "tensor", "fp8"),
        ("tensor_scale", tensor_scale, True, "nvfp4"),
    ):
        if value != usual and kind != only:
            raise ValueError(f"{option}={value!r} is an option of {_NAMES[only]}, not of {name}")
    if not x.is_floating_point():
        raise ValueError(f"round_to needs a tensor of floats, got {x.dtype}")
    if bits.is_float32 or x.numel() == 0:
        return x
    key: Tensor | None = None
    if rounding == "stochastic":
        clock = torch.tensor([hash_ints(seed), 0, 0], dtype=torch.int32, device=x.device)
        key = noise_key(clock)
    assert kind is not None
    if kind == "integer":
        return _round_to_integers(x, bits.grid_bits, key)
    numbers = torch.tensor(bits.numbers, dtype=torch.int32, device=x.device)
    if kind == "float":
        return round_elements(x, numbers, key).to(x.dtype)
    dims: tuple[int, ...] = (_check_dim(x, dim),) if x.dim() else ()
    blocks: tuple[int | None, ...] = (bits.block,) if x.dim() else ()
    if kind == "fp8":
        dims = () if granularity == "tensor" else dims
        blocks = tuple(128 if granularity == "block" else None for _ in dims)
    elif not dims:
        return round_to(
            x[None],
            bits.plain,
            rounding=rounding,
            scale=scale,
            tensor_scale=tensor_scale,
            seed=seed,
        )[0]
    return round_blocks(
        x, numbers, kind=kind, dims=dims, blocks=blocks, scale=scale,
        tensor_scale=tensor_scale, key=key,
    ).to(x.dtype)  # fmt: skip


_NAMES = {"mx": "the MX formats", "fp8": "fp8 and e5m2", "nvfp4": "nvfp4"}


def _check_choice(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")


def _check_dim(x: Tensor, dim: int) -> int:
    if not -x.dim() <= dim < x.dim():
        raise ValueError(f"dim={dim} is not a dimension of a tensor of shape {tuple(x.shape)}")
    return dim % x.dim()


def _round_to_integers(x: Tensor, bits: int, key: Tensor | None) -> Tensor:
    """The grid between the least and the largest value, with 2^bits - 1 steps."""
    values = x.detach().to(torch.float32)
    levels = torch.tensor(2.0**bits - 1, device=x.device)
    low, high = value_range(values)
    step = grid_step(low, high, levels)
    if key is None:
        return round_nearest(values, step, low, levels).to(x.dtype)
    return round_stochastic(values, step, low, levels, key).to(x.dtype)


def round_elements(
    x: Tensor, numbers: Tensor, key: Tensor | None = None, flag: Tensor | None = None
) -> Tensor:
    """Elements without a scale (kind "float"): finite values saturate, others stay.

    numbers: `Format.numbers`, int32. key: of `noise_key`, for stochastic rounding. flag: as in
    `to_bf16`.
    """
    assert numbers.dtype is torch.int32, numbers.dtype
    x = _readable(x)
    fused, own = _fused(x, flag)
    if fused:
        is_in_order = x.is_contiguous() or (key is None and is_dense(x))
        made: Tensor | None = fused.round_elements(
            x if is_in_order else x.contiguous(), numbers, key, **own
        )
        if made is not None:
            return made if is_in_order else in_layout_of(x, made)
    if own:
        flag_if_not_finite(x, flag)
    x = x.to(torch.float32)
    rounded = _round_element(x, numbers, _noise(x.shape, key))
    return torch.where(_magnitude(x) >= _INFINITE, x, rounded)


_BF16_MAX = torch.finfo(torch.bfloat16).max


def to_bf16(x: Tensor, flag: Tensor | None = None) -> Tensor:
    """`round_elements` to bf16, in bfloat16: to the nearest, half to even.

    flag: a float32 number that turns NaN if an element is not finite. A bfloat16 `x` is returned.

    >>> to_bf16(torch.tensor([0.1, -3.4e38]))
    tensor([ 1.0010e-01, -3.3895e+38], dtype=torch.bfloat16)
    """
    x = x.detach()
    is_half = x.dtype is torch.bfloat16
    if is_half and flag is None:
        return x
    both = torch.float32, torch.bfloat16
    fused: Any = native if native.is_available(x, *both) else blocks_for(x, *both)
    made: Tensor | None = fused and fused.to_bf16(x if is_dense(x) else x.contiguous(), flag)
    if made is not None:
        return made
    flag_if_not_finite(x, flag)
    if is_half:
        return x
    rounded = x.to(torch.bfloat16)
    overflows = rounded.isinf() & x.isfinite()
    return torch.where(overflows, rounded.sign() * _BF16_MAX, rounded)


def round_blocks(
    x: Tensor,
    numbers: Tensor,
    *,
    kind: str,
    dims: tuple[int, ...],
    blocks: tuple[int | None, ...],
    scale: str = "floor",
    tensor_scale: bool = True,
    key: Tensor | None = None,
    signs: Tensor | None = None,
    flag: Tensor | None = None,
) -> Tensor:
    """Elements that share a scale per block: kind "fp8", "mx" or "nvfp4".

    dims: along which blocks run, each with its size in `blocks` (None: the whole dimension); every
    other dimension has blocks of its own. Without dims the tensor is one block. The last block of a
    dimension may be shorter.
    signs: 16 values +-1 for a `hadamard` transform along dims[0] first, which may make that
    dimension longer. key: of `noise_key`, for stochastic rounding. flag: as in `to_bf16`.
    """
    assert scale == "floor" or kind == "mx", (scale, kind)
    assert dims or signs is None
    assert numbers.dtype is torch.int32, numbers.dtype
    x = _readable(x)
    dims = tuple(d % x.dim() for d in dims)
    if x.numel() == 0:
        x = x.to(torch.float32)
        return x if signs is None else x.new_empty(padded_shape(x.shape, dims[0]))
    fused, own = _fused(x, flag)
    if fused and len(dims) <= 2:
        order = _block_order(x, key)
        out: Tensor | None = fused.round_blocks(
            x.permute(order).contiguous() if order else x.contiguous(),
            numbers,
            kind=kind,
            dims=tuple(order.index(d) for d in dims) if order else dims,
            blocks=blocks,
            rounds_up=scale == "rceil",
            tensor_scale=tensor_scale,
            key=key,
            signs=signs,
            **own,
        )
        if out is not None and order:
            return out.permute([order.index(d) for d in range(x.dim())])
        if out is not None:
            return out if x.is_contiguous() or signs is not None else in_layout_of(x, out)
    if own:
        flag_if_not_finite(x, flag)
    x = x.to(torch.float32)
    if signs is not None:
        x = hadamard(x, dims[0], signs)
    out = _round_blocks(x, numbers, kind, dims, blocks, scale, tensor_scale, key)
    if torch.compiler.is_compiling():
        return out  # a compiler chooses layouts
    if not is_dense(x):
        return as_dense(out)  # padded blocks leave gaps
    return out if out.stride() == x.stride() else in_layout_of(x, out)


def _block_order(x: Tensor, key: Tensor | None) -> list[int] | None:
    """The order of dimensions in memory, if blocks can be rounded in it without a copy.

    Noise numbers elements in row-major order, which the memory must have then.
    """
    if x.is_contiguous() or key is not None or not is_dense(x):
        return None
    strides = x.stride()
    return sorted(range(x.dim()), key=lambda d: (-strides[d], -x.shape[d]))


def hadamard(x: Tensor, dim: int, signs: Tensor) -> Tensor:
    """The random Hadamard transform of size 16 along `dim`, padded with zeros to a multiple of 16.

    y = H diag(signs) x / 4 is orthonormal: a product that sums over `dim` does not change if both
    operands are transformed with the same signs.

    >>> hadamard(torch.tensor([4.0, 0.0, 0.0]), 0, torch.ones(16))[:3]
    tensor([1., 1., 1.])
    """
    x = _readable(x)
    dim %= x.dim()
    fused: Any = native if native.is_available(x, torch.float32) else blocks_for(x, *FLOATS)
    made: Tensor | None = None
    if fused and x.numel():
        made = fused.hadamard(x.contiguous(), dim, signs)
    if made is not None:
        return made
    x = x.to(torch.float32)
    n = x.shape[dim]
    if n % SIZE:
        x = pad(x, [0, 0] * (x.dim() - 1 - dim) + [0, -n % SIZE])
    shape = x.shape
    x = x.reshape(*shape[:dim], shape[dim] // SIZE, SIZE, *shape[dim + 1 :])
    x = x.movedim(dim + 1, -1) * signs
    half = 1
    while half < SIZE:  # adds in the order of the native code
        a, b = x.reshape(*x.shape[:-1], SIZE // 2 // half, 2, half).unbind(-2)
        x = torch.stack((a + b, a - b), dim=-2).flatten(-3)
        half *= 2
    return (x * 0.25).movedim(-1, dim + 1).reshape(shape)


def _fused(x: Tensor, flag: Tensor | None) -> tuple[Any, dict[str, Tensor]]:
    """The native library or GPU kernels; and the flag as a keyword, unless it is written here.

    Kernels write it as they round.
    """
    if native.is_available(x, torch.float32):
        flag_if_not_finite(x, flag)
        return native, {}
    return blocks_for(x, *FLOATS), {} if flag is None else {"flag": flag}


def flag_if_not_finite(x: Tensor, flag: Tensor | None) -> None:
    """Turn a float32 number NaN if an element is not finite."""
    if flag is not None:
        low, high = value_range(x)
        flag_nonfinite(flag.view(1), 0, low.float(), high.float())


def _readable(x: Tensor) -> Tensor:
    """The tensor without its graph; in float32, unless GPU kernels may read it as it is."""
    x = x.detach()
    return x if x.is_cuda else x.to(torch.float32)


# -- plain torch ----------------------------------------------------------------------------------


def _magnitude(x: Tensor) -> Tensor:
    """The bits of |x|; they grow with it, and those of infinity and NaN are the largest."""
    return x.view(torch.int32) & _MAGNITUDE


def _power(exponent: Tensor) -> Tensor:
    """2^exponent from -127, a subnormal, to 127."""
    return ((exponent + 127) << 23).clamp_min(0x400000).view(torch.float32)


def _noise(shape: Sequence[int], key: Tensor | None) -> Tensor | None:
    """The noise of every element, by its row-major number."""
    return None if key is None else uniform(element_index(shape, key.device), key)


def _round_element(y: Tensor, numbers: Tensor, noise: Tensor | None) -> Tensor:
    """element(y) of the formula, for finite y."""
    mantissa, min_exponent, top = numbers.unbind()
    u = _magnitude(y)
    least = (min_exponent + 127) << 23  # bits
    normal = ((u & _FRACTION) | ((mantissa + 127) << 23)).view(torch.float32)
    small = u.view(torch.float32) * _power(-min_exponent) * _power(mantissa)
    t = torch.where(u >= least, normal, small)
    if noise is None:
        q = t.round()
    else:
        whole = t.floor()
        q = whole + (noise < (t - whole) - 0.5)
    step = torch.maximum(u & _INFINITE, least).view(torch.float32)
    value = torch.minimum(q * _power(-mantissa) * step, top.view(torch.float32))
    return torch.copysign(value, y)


def _round_blocks(
    x: Tensor,
    numbers: Tensor,
    kind: str,
    dims: tuple[int, ...],
    blocks: tuple[int | None, ...],
    scale: str,
    tensor_scale: bool,
    key: Tensor | None,
) -> Tensor:
    elements, back, _ = round_split(x, numbers, kind, dims, blocks, scale, tensor_scale, key)
    values = elements / back if kind == "fp8" else elements * back
    return join_blocks(values, x.shape, dims)


def round_split(
    x: Tensor,
    numbers: Tensor,
    kind: str,
    dims: tuple[int, ...],
    blocks: tuple[int | None, ...],
    scale: str,
    tensor_scale: bool,
    key: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Elements as `_split` has them, what scales them back, and each block's largest magnitude.

    The second divides in fp8 and multiplies in others. The magnitudes are their bits.
    """
    noise = _noise(x.shape, key)
    split, inside = _split(x, dims, blocks)
    amax = _magnitude(split).amax(inside, keepdim=True)
    factor, back = _scales(amax, numbers, kind, scale, tensor_scale)
    noise = noise if noise is None else _split(noise, dims, blocks)[0]
    return _round_element(split * factor, numbers, noise), back, amax


def _scales(
    amax: Tensor, numbers: Tensor, kind: str, scale: str, tensor_scale: bool
) -> tuple[Tensor, Tensor]:
    """What multiplies numbers before their rounding, and after it (fp8: divides); NaN for a NaN."""
    top = numbers[2]
    a, max_value = amax.view(torch.float32), top.view(torch.float32)
    if kind == "fp8":
        factor = back = (max_value / a).clamp_max(_LARGEST)
    elif kind == "mx":
        exponent = ((amax >> 23) - (top >> 23)).clamp_min(-127)
        if scale == "rceil":
            exponent = (exponent + (a > max_value * _power(exponent))).clamp_max(127)
        factor, back = _power(-exponent), _power(exponent)
    else:
        s, g = nvfp4_scales(amax, tensor_scale)
        factor, back = (1.0 / g) / s, s * g
    return factor, torch.where(amax >= _INFINITE, math.nan, back)


def nvfp4_scales(amax: Tensor, tensor_scale: bool) -> tuple[Tensor, Tensor]:
    """The scales of blocks whose largest magnitudes have these bits, and that of the tensor."""
    a = amax.view(torch.float32)
    if tensor_scale:
        of_tensor = amax.amax()
        largest = of_tensor.view(torch.float32)
        g = _divide(largest, 448.0 * 6.0).clamp_min(_LEAST_TENSOR_SCALE)
        g = torch.where(of_tensor >= _INFINITE, math.nan, g)
    else:
        g = torch.ones((), device=a.device)
    return _round_e4m3((_divide(a, 6.0) / g).clamp(2.0**-6, 448.0)), g


def _divide(x: Tensor, number: float) -> Tensor:
    """x / number, rounded once: on a GPU torch multiplies by the reciprocal of a Python number."""
    return x / torch.full_like(x, number)


def _round_e4m3(x: Tensor) -> Tensor:
    """The e4m3 number nearest to one between 2^-6 and 448."""
    u = x.view(torch.int32)
    return ((u + 0x7FFFF + ((u >> 20) & 1)) & ~0xFFFFF).view(torch.float32)


def _split(
    x: Tensor, dims: tuple[int, ...], blocks: tuple[int | None, ...]
) -> tuple[Tensor, tuple[int, ...]]:
    """The tensor with (number of blocks, block) in place of each of `dims`; the blocks' places."""
    if not dims:
        return x, tuple(range(x.dim()))
    inside = []
    for done, (d, size) in enumerate(sorted(zip(dims, blocks, strict=True))):
        at, n = d + done, x.shape[d + done]
        size = n if size is None else size
        if n % size:
            x = pad(x, [0, 0] * (x.dim() - 1 - at) + [0, -n % size])
        x = x.reshape(*x.shape[:at], -1, size, *x.shape[at + 1 :])
        inside.append(at + 1)
    return x, tuple(inside)


def join_blocks(x: Tensor, shape: Sequence[int], dims: tuple[int, ...]) -> Tensor:
    """The tensor of this shape that `_split` has split."""
    for d in sorted(dims):
        x = x.flatten(d, d + 1)
        x = x if x.shape[d] == shape[d] else x.narrow(d, 0, shape[d])
    return x
