"""A layer's product by the native library, rounding included: one call for each direction.

    forward    ranges, codes of both operands, the product; keeps the codes, running ranges,
               flags of operands that are not finite, and the call's noise
    backward   range and codes of the error, grad_input, grad_weight

An operand is kept as one tensor of bytes: its codes (two per byte up to 4 bits), then its grid. The
results are those of `kernels.native` and `quantizers` to the last bit.

Operands and results are float32 or bfloat16, each for itself. A bfloat16 operand has the grid and
codes of the same numbers in float32; a bfloat16 result is the float32 one, rounded to the nearest.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple, cast

import torch
from torch import Tensor

from bitcycle.native.encode import (
    FLOATS,
    PLAIN,
    Rule,
    count_modes,
    is_transforming,
    tracing_state,
)
from bitcycle.native.library import library

# The structs of layer.h.
_SHAPE = Struct("@4qd56q").pack
_FORWARD = Struct("@8P2q7Pqdq").pack
_BACKWARD = Struct("@9Pq").pack

_MAX_SHAPES = 256  # that a product remembers
ROLES = {"weight": 0, "act": 1}  # slots of the control tensor
_UNKNOWN = object()


@functools.cache
def _functions() -> tuple[Callable[[bytes, bytes], int], Callable[[bytes, bytes], int]]:
    found = library()
    assert found is not None
    for function in (found.bitcycle_forward, found.bitcycle_backward):
        function.argtypes = (ctypes.c_char_p, ctypes.c_char_p)
    return found.bitcycle_forward, found.bitcycle_backward


def can_call(*tensors: Tensor | None) -> bool:
    """Whether the library can read these tensors: plain float32 or bfloat16 on the CPU.

    Under a dispatch mode or a function transform it cannot: they must see torch's operations.
    """
    if count_modes() or is_transforming() or tracing_state() is not None:
        return False
    for x in tensors:
        if x is not None and not (
            x.dtype in FLOATS
            and x.is_cpu
            and type(x) in PLAIN
            and x.layout is torch.strided
            and not x.is_neg()
        ):
            return False
    return True


@dataclass(frozen=True, slots=True)
class CallShape:
    """What the shapes and dtypes of two operands and of the output fix."""

    numbers: bytes  # LayerShape of layer.h
    copies_a: bool  # an operand has gaps, or is not in the order that the product reads
    copies_w: bool
    a_bytes: int  # of the saved operands
    w_bytes: int
    output: tuple[int, ...]
    grad_input: tuple[int, ...]
    grad_weight: tuple[int, ...]
    is_channels_last: bool  # of a convolution's output, its error, its input's gradient
    a_codes: tuple[tuple[int, ...], tuple[int, ...]]  # shape and strides of the kept codes
    w_codes: tuple[tuple[int, ...], tuple[int, ...]]
    a_scales: tuple[int, ...]  # the shape of scale and offset
    w_scales: tuple[int, ...]
    is_turned: bool  # the codes of the input, to channels-last
    out_dtype: torch.dtype
    grad_a_dtype: torch.dtype
    grad_w_dtype: torch.dtype


class OperandLayout(NamedTuple):
    """What a call depends on besides the product itself."""

    a_shape: tuple[int, ...]
    a_stride: tuple[int, ...]
    w_shape: tuple[int, ...]
    w_stride: tuple[int, ...]
    a_dtype: torch.dtype
    w_dtype: torch.dtype
    out_dtype: torch.dtype  # of the output, and of the error


Given = tuple[Tensor | None, Tensor | None]  # a range that is not the tensor's own, or none
NONE: Given = (None, None)


class Flags(NamedTuple):
    """What a forward call does besides multiplying.

    row: of the input in the layer's running ranges, and the number of its product, for the noise.
    counts: counts a call of the layer. observes, evaluates: moves the running ranges, or reads
    them. momentum: of the running ranges; 0 takes the mean. saves: gradients are recorded.
    """

    row: int = 0
    counts: bool = False
    observes: bool = False
    evaluates: bool = False
    momentum: float = 0.0
    saves: bool = True


class Result(NamedTuple):
    """The output, and what backward reads: both operands (None: not needed), and the control."""

    output: Tensor
    a_saved: Tensor | None
    w_saved: Tensor | None
    control: Tensor


@dataclass(frozen=True)
class LayerProduct:
    """One product of a layer, forward and backward.

    second: the role of the second operand. window: of a convolution, stride, padding, further
    padding at the ends, dilation (all in two dimensions), groups and the number of dimensions.
    packs: whether the operands are kept two codes per byte. has_rows: the first operand has a range
    for each row, its own at every call; only with a weight, and without given or running ranges.
    """

    second: str
    window: tuple[int, ...]  # () for a product of matrices
    rule: Rule
    floor: float
    is_stochastic: bool
    has_channels: bool
    packs: tuple[bool, bool]
    has_rows: bool = False
    _shapes: dict[OperandLayout, CallShape | None] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def takes(self, a: Tensor, w: Tensor, out_dtype: torch.dtype = torch.float32) -> bool:
        """Whether the library has a call for these operands, and a result of this dtype."""
        return out_dtype in FLOATS and self.shape(layout_of(a, w, out_dtype)) is not None

    def shape(self, key: OperandLayout) -> CallShape | None:
        """What is fixed for operands of this layout; None: there is no call."""
        found = self._shapes.get(key, _UNKNOWN)
        if found is not _UNKNOWN:
            return cast(CallShape | None, found)
        if len(self._shapes) >= _MAX_SHAPES:
            self._shapes.clear()
        self._shapes[key] = made = self._make_shape(key)
        return made

    def forward(
        self,
        a: Tensor,
        w: Tensor,
        bias: Tensor | None,
        control: Tensor,
        health: Tensor,
        ranges: Tensor,
        flags: Flags,
        given: tuple[Given, Given],
        needs: tuple[bool, bool],
        a_saved: Tensor | None = None,
        out_dtype: torch.dtype = torch.float32,
    ) -> Result:
        """The product. needs: backward's, of the input and of the second operand.

        a_saved: the input as another product has saved it. out_dtype: float32 or bfloat16.
        """
        shape = self.shape(layout_of(a, w, out_dtype))
        assert shape is not None
        first = a if a_saved is None else None
        if needs[0] and a_saved is None:
            a_saved = torch.empty(shape.a_bytes, dtype=torch.uint8, device="cpu")
        w_saved = None
        if needs[1]:
            w_saved = torch.empty(shape.w_bytes, dtype=torch.uint8, device="cpu")
        copy = torch.empty_like(control)
        output = self._call_forward(
            shape, first, w, bias, a_saved, w_saved, (control, copy, health, ranges), flags, given
        )
        return Result(output, a_saved, w_saved, copy)

    def recompute(self, key: OperandLayout, a_saved: Tensor, w_saved: Tensor) -> Tensor:
        """The output again, without a bias, from the saved operands."""
        shape = self.shape(key)
        assert shape is not None
        nothing = (None, None, None, None)
        return self._call_forward(
            shape, None, None, None, a_saved, w_saved, nothing, Flags(), (NONE, NONE)
        )

    def _call_forward(
        self,
        shape: CallShape,
        a: Tensor | None,
        w: Tensor | None,
        bias: Tensor | None,
        a_saved: Tensor | None,
        w_saved: Tensor | None,
        buffers: tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None],
        flags: Flags,
        given: tuple[Given, Given],
    ) -> Tensor:
        if a is not None and shape.copies_a:
            a = a.contiguous()
        if w is not None and shape.copies_w:
            w = w.contiguous()
        bias = None if bias is None else bias.float().contiguous()
        output = self._new_map(shape.output, shape.out_dtype, shape)
        control, copy, health, ranges = buffers
        (a_low, a_high), (w_low, w_high) = _as_float32(given[0]), _as_float32(given[1])
        a_range = 0
        if ranges is not None and (flags.observes or flags.evaluates):
            a_range = ranges.data_ptr() + 12 * flags.row
        arguments = _FORWARD(
            0 if a is None else a.data_ptr(),
            0 if w is None else w.data_ptr(),
            0 if a_saved is None else a_saved.data_ptr(),
            0 if w_saved is None else w_saved.data_ptr(),
            0 if bias is None else bias.data_ptr(),
            output.data_ptr(),
            0 if control is None else control.data_ptr(),
            0 if copy is None else copy.data_ptr(),
            flags.row,
            flags.counts,
            0 if health is None else health.data_ptr(),
            0 if a_low is None else a_low.data_ptr(),
            0 if a_high is None else a_high.data_ptr(),
            0 if w_low is None else w_low.data_ptr(),
            0 if w_high is None else w_high.data_ptr(),
            a_range,
            a_range + 12 if a_range and self.second == "act" else 0,
            flags.evaluates,
            flags.momentum,
            torch.get_num_threads(),
        )
        if _functions()[0](arguments, shape.numbers):
            raise MemoryError("no memory for the operands of a product")
        return output

    def backward(
        self,
        key: OperandLayout,
        e: Tensor,
        saved: tuple[Tensor | None, Tensor | None],
        control: Tensor,
        health: Tensor | None,
        needs: tuple[bool, bool],
        given: Given = NONE,
    ) -> tuple[Tensor | None, Tensor | None]:
        """grad_input and grad_weight, as needed; e: in the layout and dtype of the output.

        A gradient has the dtype of its operand, but that of a weight is float32.
        """
        shape = self.shape(key)
        assert shape is not None
        assert e.dtype is shape.out_dtype
        a_saved, w_saved = saved
        grad_a = self._new_map(shape.grad_input, shape.grad_a_dtype, shape) if needs[0] else None
        grad_w = self._new_weight(shape.grad_weight, shape.grad_w_dtype) if needs[1] else None
        low, high = _as_float32(given)
        arguments = _BACKWARD(
            e.data_ptr(),
            0 if a_saved is None else a_saved.data_ptr(),
            0 if w_saved is None else w_saved.data_ptr(),
            control.data_ptr(),
            0 if health is None else health.data_ptr(),
            0 if grad_a is None else grad_a.data_ptr(),
            0 if grad_w is None else grad_w.data_ptr(),
            0 if low is None else low.data_ptr(),
            0 if high is None else high.data_ptr(),
            torch.get_num_threads(),
        )
        if _functions()[1](arguments, shape.numbers):
            raise MemoryError("no memory for the operands of a product")
        if grad_w is not None and self.window and self.window[-1] == 1:
            grad_w = grad_w.squeeze(2)
        return grad_a, grad_w

    def operands(
        self, key: OperandLayout, saved: tuple[Tensor | None, Tensor | None]
    ) -> tuple[SavedOperand | None, SavedOperand | None]:
        """The saved operands, for products that the library does not compute as a whole."""
        shape = self.shape(key)
        assert shape is not None
        a_saved, w_saved = saved
        first = second = None
        if a_saved is not None:
            first = SavedOperand(
                a_saved, *shape.a_codes, shape.a_scales, self.packs[0], shape.is_turned
            )
        if w_saved is not None:
            second = SavedOperand(w_saved, *shape.w_codes, shape.w_scales, self.packs[1])
        return first, second

    # -- shapes -----------------------------------------------------------------------------------

    def _new_map(self, shape: tuple[int, ...], dtype: torch.dtype, call: CallShape) -> Tensor:
        """As torch's convolutions: channels-last if an operand is, else contiguous."""
        if call.is_channels_last:
            return torch.empty(shape, dtype=dtype, device="cpu", memory_format=torch.channels_last)
        return torch.empty(shape, dtype=dtype, device="cpu")

    def _new_weight(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if not self.window:
            return torch.empty(shape, dtype=dtype, device="cpu")
        return torch.empty(shape, dtype=dtype, device="cpu", memory_format=torch.channels_last)

    def _make_shape(self, key: OperandLayout) -> CallShape | None:
        if 0 in key.a_shape or 0 in key.w_shape:
            return None
        if self.window:
            return self._conv_shape(key)
        if self.second == "weight":
            return self._linear_shape(key)
        return self._matmul_shape(key)

    def _linear_shape(self, key: OperandLayout) -> CallShape | None:
        a_shape, a_stride, w_shape, w_stride = map(tuple, key[:4])
        rows, (num_out, num_in) = math.prod(a_shape[:-1]), w_shape
        if a_shape[-1] != num_in:
            return None
        copies_w = not _is_dense(w_shape, w_stride)
        w_stride = _contiguous_strides(w_shape) if copies_w else w_stride
        block = _block(w_shape, w_stride, self.has_channels)
        steps = (1, 1, 0, 0, 0, 0, rows, num_out, num_in, num_in, 1, *w_stride)
        return self._pack(
            dtypes=key[4:],
            sizes=(rows * num_in, num_in * num_out, rows * num_out),
            block=block,
            copies=(not _is_contiguous(a_shape, a_stride), copies_w),
            steps=steps,
            results=((*a_shape[:-1], num_out), a_shape, w_shape),
            codes=((a_shape, _contiguous_strides(a_shape)), (w_shape, w_stride)),
            a_scales=(*a_shape[:-1], 1) if self.has_rows and rows > 1 else (),
            w_scales=(block[1], 1) if block[1] > 1 else (),
        )

    def _matmul_shape(self, key: OperandLayout) -> CallShape | None:
        a_shape, a_stride, w_shape, w_stride = map(tuple, key[:4])
        batch = a_shape[:-2]
        if len(a_shape) < 2 or batch != w_shape[:-2] or len(batch) > 2:
            return None  # batches broadcast, or have more axes than the library steps along
        if a_shape[-1] != w_shape[-2]:
            return None
        copies = not _is_dense(a_shape, a_stride), not _is_dense(w_shape, w_stride)
        a_stride = _contiguous_strides(a_shape) if copies[0] else a_stride
        w_stride = _contiguous_strides(w_shape) if copies[1] else w_stride
        none = (0,) * (2 - len(batch))
        counts = (*(1,) * (2 - len(batch)), *batch)
        (rows, length), columns = a_shape[-2:], w_shape[-1]
        steps = (
            *counts, *none, *a_stride[:-2], *none, *w_stride[:-2], rows, columns, length,
            *a_stride[-2:], w_stride[-1], w_stride[-2],
        )  # fmt: skip
        return self._pack(
            dtypes=key[4:],
            sizes=(math.prod(a_shape), math.prod(w_shape), math.prod(batch) * rows * columns),
            block=(1, 1, math.prod(w_shape)),
            copies=copies,
            steps=steps,
            results=((*batch, rows, columns), a_shape, w_shape),
            codes=((a_shape, a_stride), (w_shape, w_stride)),
        )

    def _conv_shape(self, key: OperandLayout) -> CallShape | None:
        a_shape, a_stride, w_shape, w_stride = map(tuple, key[:4])
        *window, groups, num_dims = self.window
        stride, padding, _, dilation = (tuple(window[i : i + 2]) for i in range(0, 8, 2))
        if len(a_shape) != num_dims + 2 or a_shape[1] != w_shape[1] * groups:
            return None
        if w_shape[0] % groups:
            return None
        (num, num_in), size = a_shape[:2], (1, *a_shape[2:])[-2:]
        (num_out, depth), kernel = w_shape[:2], (1, *w_shape[2:])[-2:]
        out_size = (1, *output_map(self.window, a_shape, w_shape)[2:])[-2:]
        a_is_last = _is_channels_last(a_shape, a_stride)
        is_contiguous = _is_contiguous(a_shape, a_stride)
        if min(out_size) < 1 or not (is_contiguous or a_is_last):
            return None
        copies_w = not _is_dense(w_shape, w_stride)
        w_is_last = _is_channels_last(w_shape, w_stride)
        w_stride = _contiguous_strides(w_shape) if copies_w else w_stride
        is_last = num_dims == 2 and any(
            last and not contiguous
            for last, contiguous in (
                (a_is_last, is_contiguous),
                (w_is_last, _is_contiguous(w_shape, w_stride)),
            )
        )
        pixels, out_pixels = math.prod(size), math.prod(out_size)
        block = _block(w_shape, w_stride, self.has_channels)
        a_turn = (0, 0, 0) if a_is_last else (num, num_in, pixels)
        e_is_last = is_last or num_out == 1 or out_pixels == 1
        e_turn = (0, 0, 0) if e_is_last else (num, num_out, out_pixels)
        maps = (
            num, *size, num_in, *out_size, num_out, *kernel, *stride, *padding, *dilation, groups,
            *w_stride[:2], *(0, *w_stride[2:])[-2:],
            depth * kernel[0] * kernel[1], 1, kernel[1] * depth, depth,
        )  # fmt: skip
        last = _channels_last_strides((num, num_in, *size))
        turned = *last[:2], *last[2:][-num_dims:]
        return self._pack(
            dtypes=key[4:],
            sizes=(num * num_in * pixels, math.prod(w_shape), num * num_out * out_pixels),
            block=block,
            copies=(False, copies_w),
            turns=(*a_turn, *e_turn),
            maps=maps,
            results=(
                (num, num_out, *out_size[-num_dims:]), a_shape, (num_out, depth, *kernel)
            ),
            is_channels_last=is_last,
            codes=((a_shape, a_stride if a_is_last else turned), (w_shape, w_stride)),
            w_scales=(block[1], *(1,) * (len(w_shape) - 1)) if block[1] > 1 else (),
        )  # fmt: skip

    def _pack(
        self,
        *,
        dtypes: tuple[torch.dtype, torch.dtype, torch.dtype],
        sizes: tuple[int, int, int],
        block: tuple[int, int, int],
        copies: tuple[bool, bool],
        results: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
        codes: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...],
        steps: tuple[int, ...] = (0,) * 13,
        turns: tuple[int, ...] = (0,) * 6,
        maps: tuple[int, ...] = (0,) * 24,
        is_channels_last: bool = False,
        a_scales: tuple[int, ...] = (),
        w_scales: tuple[int, ...] = (),
    ) -> CallShape:
        a_rows = math.prod(a_scales)
        numbers = _SHAPE(
            bool(self.window), ROLES[self.second], self.rule, self.is_stochastic,
            self.floor, *sizes, *block, *self.packs, *turns, *steps, *maps,
            *(dtype is torch.bfloat16 for dtype in dtypes), not is_channels_last, a_rows,
        )  # fmt: skip
        a_dtype, w_dtype, out_dtype = dtypes
        num_floats = 2 * block[1] + (1 if self.second == "weight" else 3)
        return CallShape(
            numbers,
            *copies,
            code_bytes(sizes[0], self.packs[0]) + 4 * (4 * a_rows + 1),
            code_bytes(sizes[1], self.packs[1]) + 4 * num_floats,
            *results,
            is_channels_last=is_channels_last,
            a_codes=codes[0],
            w_codes=codes[1],
            a_scales=a_scales,
            w_scales=w_scales,
            is_turned=turns[0] > 0,
            out_dtype=out_dtype,
            grad_a_dtype=a_dtype,
            grad_w_dtype=torch.float32 if self.second == "weight" else w_dtype,
        )


def code_bytes(count: int, is_packed: bool) -> int:
    """Of codes, filled up to a multiple of 4."""
    return (((count + 1) // 2 if is_packed else count) + 3) // 4 * 4


def layout_of(a: Tensor, w: Tensor, out_dtype: torch.dtype) -> OperandLayout:
    """The layout of two operands and the dtype of their product."""
    return OperandLayout(a.shape, a.stride(), w.shape, w.stride(), a.dtype, w.dtype, out_dtype)


def _as_float32(given: Given) -> Given:
    """A given range, which may have the dtype of its tensor."""
    low, high = given
    return given if low is None or high is None else (low.float(), high.float())


class SavedOperand(NamedTuple):
    """A saved operand: bytes of codes (two per byte if packed) and their grid."""

    saved: Tensor
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    scales: tuple[int, ...]  # the shape of scale and offset
    is_packed: bool
    is_turned: bool = False  # to channels-last, from a contiguous tensor

    @property
    def codes(self) -> Tensor:
        """The codes in memory order, or two per byte."""
        count = math.prod(self.shape)
        return self.saved[: (count + 1) // 2 if self.is_packed else count]

    def grid(self) -> tuple[Tensor, Tensor, Tensor]:
        """Scale, offset and half."""
        floats = self.saved[code_bytes(math.prod(self.shape), self.is_packed) :]
        floats, n = floats.view(torch.float32), math.prod(self.scales)
        return floats[:n].view(self.scales), floats[n : 2 * n].view(self.scales), floats[2 * n]


# -- strides --------------------------------------------------------------------------------------


def _contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """
    >>> _contiguous_strides((2, 3, 4))
    (12, 4, 1)
    """
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def _channels_last_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """
    >>> _channels_last_strides((2, 3, 4, 5))
    (60, 1, 15, 3)
    """
    outer, *inner, channels = _contiguous_strides((shape[0], *shape[2:], shape[1]))
    return outer, channels, *inner


def _is_contiguous(shape: Sequence[int], stride: Sequence[int]) -> bool:
    wanted = _contiguous_strides(shape)
    return all(n == 1 or s == w for n, s, w in zip(shape, stride, wanted, strict=True))


def _is_channels_last(shape: Sequence[int], stride: Sequence[int]) -> bool:
    wanted = _channels_last_strides(shape)
    return all(n == 1 or s == w for n, s, w in zip(shape, stride, wanted, strict=True))


def _is_dense(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether the elements are contiguous in memory in some order of dimensions."""
    step = 1
    for s, n in sorted(zip(stride, shape, strict=True)):
        if n != 1 and s != step:
            return False
        step *= n
    return True


def _block(shape: Sequence[int], stride: Sequence[int], has_channels: bool) -> tuple[int, int, int]:
    """The memory of a weight as (outer, output channels, inner)."""
    size, channels = math.prod(shape), shape[0] if has_channels else 1
    if channels == 1:
        return 1, 1, size
    return size // (channels * stride[0]), channels, stride[0]


def output_map(
    window: Sequence[int], a_shape: Sequence[int], w_shape: Sequence[int]
) -> tuple[int, ...]:
    """The shape of a convolution's output."""
    num_dims = window[-1]
    stride, padding, ends, dilation = (window[i : i + 2][-num_dims:] for i in range(0, 8, 2))
    sides = zip(a_shape[2:], padding, ends, dilation, w_shape[2:], stride, strict=True)
    size = ((n + 2 * p + end - d * (k - 1) - 1) // s + 1 for n, p, end, d, k, s in sides)
    return a_shape[0], w_shape[0], *size
