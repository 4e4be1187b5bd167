"""Products of codes by the native library: matrices and convolutions, float32 results.

Codes are unsigned bytes with a grid, value = scale * code + offset. How two operands are multiplied
depends on their bits. The library reads these from `half` at every call, so that a compiled graph
serves all steps of a schedule.

>>> x = Codes.of([[0, 1, 3]], scale=0.5, offset=-1.0, bits=2)      # values -1, -0.5, 0.5
>>> y = Codes.of([[3, 3, 1]], scale=1.0, offset=0.0, bits=2)
>>> gemm(x, y)
tensor([[-4.]])
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bitcycle.native.library import library


class Codes(NamedTuple):
    """Unsigned bytes and their grid: value = scale * code + offset.

    `scale` and `offset` have one element, or one for each channel; `half` is (levels + 1) / 2. All
    three are float32.
    """

    codes: Tensor
    scale: Tensor
    offset: Tensor
    half: Tensor

    @classmethod
    def of(cls, codes: Any, *, scale: Any, offset: Any, bits: int) -> Codes:
        """Codes from plain numbers."""
        numbers = [torch.tensor(n, dtype=torch.float32) for n in (scale, offset, 2.0 ** (bits - 1))]
        return cls(torch.as_tensor(codes, dtype=torch.uint8), *numbers)


def gemm(x: Codes, y: Codes, bias: Tensor | None = None, *, packed: Tensor | None = None) -> Tensor:
    """Multiply (..., M, K) with the transpose of (..., N, K).

    `x` has one scale, or M if there are no batches; `y` has one or N. Codes may have any strides,
    and batches broadcast. `packed` is what `pack` made of `y`, for an `x` with one scale.
    """
    if torch.compiler.is_compiling():
        return _gemm_op(*x, *y, bias, packed)
    return _gemm(*x, *y, bias, packed)


def gemm_folded(
    x: Codes, y: Codes, bias: Tensor | None = None, *, packed: Tensor | None = None
) -> Tensor:
    """Multiply (M, K) with the transpose of (N, K), where `y` has a scale for each k.

    Scales on the axis that is summed over cannot be taken out of the sum. So the values of `y` are
    rounded to 16 bits with one scale for each of its N rows: an element of the result is off by at
    most 2^-16 * max|y[n]| * sum|x[m]|, besides the rounding of float32. `x` has one scale, or one
    for each k as well, which then is part of what is rounded: the bound has max|x_scale[k] y[n, k]|
    and the sum of |code - half|.
    """
    if torch.compiler.is_compiling():
        return _gemm_folded_op(*x, *y, bias, packed)
    return _gemm_folded(*x, *y, bias, packed)


def pack(x_half: Tensor, y: Codes) -> Tensor:
    """Lay out `y` as `gemm` reads it, for many products with operands of the bits of `x_half`."""
    if torch.compiler.is_compiling():
        return _pack_op(x_half, *y)
    return _pack(x_half, *y)


def pack_folded(y: Codes) -> Tensor:
    """Lay out `y` as `gemm_folded` reads it, for operands that have one scale."""
    if torch.compiler.is_compiling():
        return _pack_folded_op(*y)
    return _pack_folded(*y)


def conv_output(
    a: Codes,
    w: Codes,
    bias: Tensor | None,
    out_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """Convolve (N, C, H, W) with the weight (O, C / groups, kh, kw), which has 1 or O scales.

    Positions outside the map count as the value 0, also those that `out_size` reaches beyond
    `padding` (the end of "same" padding).
    """
    if torch.compiler.is_compiling():
        return _conv_output_op(*a, *w, bias, out_size, stride, padding, dilation, groups)
    return _conv_output(*a, *w, bias, out_size, stride, padding, dilation, groups)


def conv_grad_input(
    e: Codes,
    w: Codes,
    in_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """Compute the gradient for the map of `in_size` (C, H, W) from the error (N, K, Ho, Wo).

    Where the weight has O scales, they lie on the axis that is summed over: see `gemm_folded`. The
    error has one scale, or one for each of the N maps.
    """
    if torch.compiler.is_compiling():
        return _conv_grad_input_op(*e, *w, in_size, stride, padding, dilation, groups)
    return _conv_grad_input(*e, *w, in_size, stride, padding, dilation, groups)


def conv_grad_weight(
    e: Codes,
    a: Codes,
    w_shape: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """Compute the gradient for the weight of `w_shape` (O, C / groups, kh, kw)."""
    if torch.compiler.is_compiling():
        return _conv_grad_weight_op(*e, *a, w_shape, stride, padding, dilation, groups)
    return _conv_grad_weight(*e, *a, w_shape, stride, padding, dilation, groups)


# ---- calls of the library ----------------------------------------------------------------------
#
# Arguments are a C struct of pointers, then of 64-bit numbers: `Gemm` of gemm.h, `Conv` of conv.h.
# The last numbers stay 0: results are float32, maps channels-last.

_GEMM = struct.Struct("@11P16q8x")
_NO_GRID = (1, 1, 0, 0, 0, 0)
_CONV = struct.Struct("@14P23q16x")


def _call(name: str, arguments: bytes) -> None:
    if getattr(library(), name)(arguments):
        raise MemoryError(f"{name}: no memory for the operands in the layout that the tiles read")


def _floats(*tensors: Tensor) -> list[Tensor]:
    """As contiguous float32; the caller keeps the list while the library reads it."""
    return [
        t if t.dtype is torch.float32 and t.is_contiguous() else t.to(torch.float32).contiguous()
        for t in tensors
    ]


def _pointers(tensors: list[Tensor]) -> list[int]:
    return [t.data_ptr() for t in tensors]


def _nothing(shape: Sequence[int], bias: Tensor | None, like: Tensor) -> Tensor:
    """Sums without a term."""
    out = like.new_zeros(shape, dtype=torch.float32)
    return out if bias is None else out + bias


def _gemm(
    x: Tensor,
    x_scale: Tensor,
    x_offset: Tensor,
    x_half: Tensor,
    y: Tensor,
    y_scale: Tensor,
    y_offset: Tensor,
    y_half: Tensor,
    bias: Tensor | None,
    packed: Tensor | None,
) -> Tensor:
    if x.dim() == y.dim() == 2:
        batch, grid = torch.Size(), _NO_GRID
    else:
        batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])  # type: ignore[no-untyped-call]
        x, y = _as_grid(x, batch), _as_grid(y, batch)
        grid = (*x.shape[:2], *x.stride()[:2], *y.stride()[:2])
    shape = (*batch, x.shape[-2], y.shape[-2])
    floats = _floats(x_scale, x_offset, x_half, y_scale, y_offset, y_half)
    return _multiply("bitcycle_gemm", x, y, floats, bias, packed, shape, grid)


def _gemm_folded(
    x: Tensor,
    x_scale: Tensor,
    x_offset: Tensor,
    x_half: Tensor,
    y: Tensor,
    y_scale: Tensor,
    y_offset: Tensor,
    y_half: Tensor,
    bias: Tensor | None,
    packed: Tensor | None,
) -> Tensor:
    K = x.shape[1]
    if x_scale.numel() > 1:
        packed = None  # it has no room for the scales of x
    floats = _floats(x_scale, x_offset, x_half, y_scale.expand(K), y_offset.expand(K), y_half)
    shape = (x.shape[0], y.shape[0])
    return _multiply("bitcycle_gemm_folded", x, y, floats, bias, packed, shape, _NO_GRID)


def _as_grid(codes: Tensor, batch: torch.Size) -> Tensor:
    """As (outer, inner, rows, K), without a copy if there are at most two axes of batches."""
    codes = codes.expand(*batch, *codes.shape[-2:])
    if len(batch) > 2:
        return codes.flatten(0, len(batch) - 2)
    return codes[(None,) * (2 - len(batch))]


def _multiply(
    name: str,
    x: Tensor,
    y: Tensor,
    floats: list[Tensor],
    bias: Tensor | None,
    packed: Tensor | None,
    shape: tuple[int, ...],
    grid: tuple[int, ...],
) -> Tensor:
    M, K = x.shape[-2:]
    N = y.shape[-2]
    out = torch.empty(shape, dtype=torch.float32, device=x.device)
    if not K or not out.numel():
        return _nothing(shape, bias, x)
    scales = (floats[0].numel(), floats[3].numel())
    if bias is not None:
        floats += _floats(bias)
    pointers = [t.data_ptr() for t in floats]
    if bias is None:
        pointers.append(0)
    pointers += (out.data_ptr(), 0 if packed is None else packed.data_ptr())
    strides = (*x.stride()[-2:], *y.stride()[-2:])
    sizes = (M, N, K, *strides, *scales, torch.get_num_threads())
    _call(name, _GEMM.pack(x.data_ptr(), y.data_ptr(), *pointers, *grid, *sizes))
    return out


def _packed_bytes(y: Tensor) -> int:
    """Size of `Second` in gemm.cpp: 16 columns at a time, K in fours, at most two bytes a code."""
    N, K = y.shape
    columns = (N + 15) // 16 * 16
    return columns * (24 + (K + 3) // 4 * 8)


def _pack(x_half: Tensor, y: Tensor, y_scale: Tensor, y_offset: Tensor, y_half: Tensor) -> Tensor:
    out = y.new_empty(_packed_bytes(y))
    x_half, y_half = _floats(x_half, y_half)
    if y.numel():
        pointers = (0, 0, x_half.data_ptr(), 0, 0, y_half.data_ptr(), 0, 0, out.data_ptr())
        _pack_into("bitcycle_pack", y, pointers, 1)
    return out


def _pack_folded(y: Tensor, y_scale: Tensor, y_offset: Tensor, y_half: Tensor) -> Tensor:
    out = y.new_empty(_packed_bytes(y))
    K = y.shape[1]
    scale, offset = _floats(y_scale.expand(K), y_offset.expand(K))
    if y.numel():
        pointers = (0, 0, 0, scale.data_ptr(), offset.data_ptr(), 0, 0, 0, out.data_ptr())
        _pack_into("bitcycle_pack_folded", y, pointers, K)
    return out


def _pack_into(name: str, y: Tensor, pointers: tuple[int, ...], num_scales: int) -> None:
    N, K = y.shape
    sizes = (0, N, K, 0, 0, *y.stride(), 1, num_scales, torch.get_num_threads())
    _call(name, _GEMM.pack(0, y.data_ptr(), *pointers, *_NO_GRID, *sizes))


def _channels_last(codes: Tensor) -> Tensor:
    return codes.contiguous(memory_format=torch.channels_last)


def _new_map(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    return torch.empty(
        shape, dtype=torch.float32, device=like.device, memory_format=torch.channels_last
    )


def _conv_output(
    a: Tensor,
    a_scale: Tensor,
    a_offset: Tensor,
    a_half: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_offset: Tensor,
    w_half: Tensor,
    bias: Tensor | None,
    out_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    (N, C, H, W), (K, _, kh, kw) = a.shape, w.shape
    out = _new_map(a, (N, K, *out_size))
    if not (out.numel() and a.numel() and w.numel()):
        return out.zero_() if bias is None else out.copy_(bias[:, None, None].expand_as(out))
    a = _channels_last(a)
    floats = _floats(a_scale, a_offset, a_half, w_scale, w_offset, w_half)
    pointers = [a.data_ptr(), w.data_ptr(), 0, *_pointers(floats), 0, 0, 0, 0, out.data_ptr()]
    if bias is not None:
        floats += _floats(bias)
        pointers[12] = floats[-1].data_ptr()
    sizes = (N, H, W, C, *out_size, K, kh, kw, *stride, *padding, *dilation, groups)
    last = (*w.stride(), w_scale.numel(), 1, torch.get_num_threads())
    _call("bitcycle_conv_output", _CONV.pack(*pointers, *sizes, *last))
    return out


def _conv_grad_input(
    e: Tensor,
    e_scale: Tensor,
    e_offset: Tensor,
    e_half: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_offset: Tensor,
    w_half: Tensor,
    in_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    (N, K, Ho, Wo), (C, H, W), (_, _, kh, kw) = e.shape, in_size, w.shape
    out = _new_map(e, (N, C, H, W))
    if not (out.numel() and e.numel() and w.numel()):
        return out.zero_()
    e = _channels_last(e)
    floats = _floats(w_scale, w_offset, w_half, e_scale, e_offset, e_half)
    pointers = (0, w.data_ptr(), e.data_ptr(), 0, 0, 0, *_pointers(floats), 0, out.data_ptr())
    sizes = (N, H, W, C, Ho, Wo, K, kh, kw, *stride, *padding, *dilation, groups)
    last = (*w.stride(), w_scale.numel(), e_scale.numel(), torch.get_num_threads())
    _call("bitcycle_conv_grad_input", _CONV.pack(*pointers, *sizes, *last))
    return out


def _conv_grad_weight(
    e: Tensor,
    e_scale: Tensor,
    e_offset: Tensor,
    e_half: Tensor,
    a: Tensor,
    a_scale: Tensor,
    a_offset: Tensor,
    a_half: Tensor,
    w_shape: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    (N, C, H, W), (_, K, Ho, Wo), (_, _, kh, kw) = a.shape, e.shape, w_shape
    out = torch.empty(
        w_shape, dtype=torch.float32, device=a.device, memory_format=torch.channels_last
    )
    if not (out.numel() and e.numel() and a.numel()):
        return out.zero_()
    a, e = _channels_last(a), _channels_last(e)
    floats = _floats(a_scale, a_offset, a_half, e_scale, e_offset, e_half)
    p = _pointers(floats)
    pointers = (a.data_ptr(), 0, e.data_ptr(), *p[:3], 0, 0, 0, *p[3:], 0, out.data_ptr())
    sizes = (N, H, W, C, Ho, Wo, K, kh, kw, *stride, *padding, *dilation, groups)
    last = (*out.stride(), 1, 1, torch.get_num_threads())
    _call("bitcycle_conv_grad_weight", _CONV.pack(*pointers, *sizes, *last))
    return out


# ---- operators for compiled graphs -------------------------------------------------------------


def _gemm_fake(x: Tensor, *others: Any) -> Tensor:
    y = others[3]
    batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])  # type: ignore[no-untyped-call]
    return x.new_empty((*batch, x.shape[-2], y.shape[-2]), dtype=torch.float32)


def _pack_fake(x_half: Tensor, y: Tensor, *grid: Tensor) -> Tensor:
    return y.new_empty(_packed_bytes(y))


def _pack_folded_fake(y: Tensor, *grid: Tensor) -> Tensor:
    return y.new_empty(_packed_bytes(y))


def _conv_output_fake(a: Tensor, *others: Any) -> Tensor:
    w, out_size = others[3], others[8]
    return _new_map(a, (a.shape[0], w.shape[0], *out_size))


def _conv_grad_input_fake(e: Tensor, *others: Any) -> Tensor:
    return _new_map(e, (e.shape[0], *others[7]))


def _conv_grad_weight_fake(e: Tensor, *others: Any) -> Tensor:
    empty = e.new_empty(others[7], dtype=torch.float32)
    return empty.contiguous(memory_format=torch.channels_last)


def _operator(call: Callable[..., Tensor], fake: Callable[..., Tensor]) -> Callable[..., Tensor]:
    op = torch.library.custom_op(f"bitcycle::{call.__name__[1:]}", call, mutates_args=())
    op.register_fake(fake)
    return op


_gemm_op = _operator(_gemm, _gemm_fake)
_gemm_folded_op = _operator(_gemm_folded, _gemm_fake)
_pack_op = _operator(_pack, _pack_fake)
_pack_folded_op = _operator(_pack_folded, _pack_folded_fake)
_conv_output_op = _operator(_conv_output, _conv_output_fake)
_conv_grad_input_op = _operator(_conv_grad_input, _conv_grad_input_fake)
_conv_grad_weight_op = _operator(_conv_grad_weight, _conv_grad_weight_fake)
