"""Geometries: the three products of every multiplying op, as products of two float tensors.

A geometry is the shape of an op (strides, padding, groups) without its operands. Products of
float32 tensors are exact to float32, whatever torch may round them to (`without_tf32`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from bitcycle.quantizers.base import OperandView, Quantized
from bitcycle.warnings import BitcycleWarning

NOTHING: AbstractContextManager[None] = nullcontext()


class Geometry(Protocol):
    """An op with two operands: `a` (the input) and `w` (the weight, or a second activation)."""

    second: ClassVar[str]  # the role of w: weight or act

    @property
    def channel_dims(self) -> tuple[int, ...]:
        """The output channels of w in `channel_view`, which get a range each."""

    @property
    def input_channel_dims(self) -> tuple[int, ...]:
        """The input channels of w, if they can have a range each; else ()."""

    def channel_view(self, w_shape: torch.Size) -> tuple[int, ...]:
        """The shape in which w has its `channel_dims`."""

    def output(self, a: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        """a x w (+ bias)."""

    def grad_input(self, e: Tensor, w: Tensor, a_shape: torch.Size) -> Tensor:
        """e x w: the error at the input."""

    def grad_weight(self, e: Tensor, a: Tensor, w_shape: torch.Size) -> Tensor:
        """e x a: the gradient of the second operand."""

    def grad_bias(self, e: Tensor) -> Tensor:
        """The error summed over everything but the output channels, in float32."""

    def macs(self, a_shape: torch.Size, w_shape: torch.Size) -> int:
        """Multiply-accumulates of the output."""

    def operand_view(self, matmul: str, operand: str, shape: torch.Size) -> OperandView:
        """The axis that a matmul sums over, in the operand "a", "w" or "e" (the error)."""


def multiply_rows(x: Tensor, y: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (..., K), y (N, K) -> x y^T (..., N); or (..., M, K), (..., N, K) -> (..., M, N)."""
    with in_float32("matmul", x):
        if y.dim() != 2:
            return torch.matmul(x, y.transpose(-1, -2))
        bias = None if bias is None else bias.to(x.dtype)
        if x.dim() <= 2 or x.is_contiguous():
            return F.linear(x, y, bias)
        # torch would repeat y for each batch of a tensor that it cannot view as rows
        rows = F.linear(x.reshape(math.prod(x.shape[:-1]), x.shape[-1]), y, bias)
        return rows.view(*x.shape[:-1], y.shape[0])


@dataclass(frozen=True)
class LinearGeometry:
    """output = a w^T: a (..., in), w (out, in)."""

    second: ClassVar[str] = "weight"
    channel_dims: ClassVar[tuple[int, ...]] = (0,)
    input_channel_dims: ClassVar[tuple[int, ...]] = (1,)

    def channel_view(self, w_shape: torch.Size) -> tuple[int, ...]:
        """The weight itself."""
        return tuple(w_shape)

    def output(self, a: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        """(..., in) x (out, in) -> (..., out)."""
        return multiply_rows(a, w, bias)

    def grad_input(self, e: Tensor, w: Tensor, a_shape: torch.Size) -> Tensor:
        """(..., out) x (out, in) -> (..., in)."""
        return multiply_rows(e, w.t())

    def grad_weight(self, e: Tensor, a: Tensor, w_shape: torch.Size) -> Tensor:
        """(tokens, out)^T x (tokens, in) -> (out, in)."""
        rows = math.prod(e.shape[:-1])
        e, a = e.reshape(rows, e.shape[-1]), a.reshape(rows, a.shape[-1])
        return multiply_rows(e.t(), a.t())

    def grad_bias(self, e: Tensor) -> Tensor:
        """(..., out) -> (out,)."""
        rows = e.reshape(math.prod(e.shape[:-1]), e.shape[-1])
        return rows.sum(0, dtype=torch.promote_types(e.dtype, torch.float32))

    def macs(self, a_shape: torch.Size, w_shape: torch.Size) -> int:
        """Multiply-accumulates of the output."""
        return math.prod(a_shape) * w_shape[0]

    def operand_view(self, matmul: str, operand: str, shape: torch.Size) -> OperandView:
        """The features for output and grad_input, the tokens for grad_weight."""
        if operand == "w":  # (out, in)
            dim = 1 if matmul == "output" else 0
            return OperandView(matmul, tuple(shape), dim, tuple(shape), (0, 1))
        if matmul == "grad_weight":
            rows = math.prod(shape[:-1])
            return OperandView(matmul, (rows, shape[-1]), 0, is_tokens=True)
        return OperandView(matmul, tuple(shape), len(shape) - 1)


@dataclass(frozen=True)
class MatMulGeometry:
    """output = a w for two activations with at least two dimensions, batches broadcast."""

    second: ClassVar[str] = "act"
    channel_dims: ClassVar[tuple[int, ...]] = ()
    input_channel_dims: ClassVar[tuple[int, ...]] = ()

    def channel_view(self, w_shape: torch.Size) -> tuple[int, ...]:
        """The second operand itself."""
        return tuple(w_shape)

    def output(self, a: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        """(..., M, K) x (..., K, N) -> (..., M, N)."""
        return multiply_rows(a, w.transpose(-1, -2))

    def grad_input(self, e: Tensor, w: Tensor, a_shape: torch.Size) -> Tensor:
        """(..., M, N) x (..., K, N)^T -> (..., M, K), summed over broadcast batches."""
        return multiply_rows(e, w).sum_to_size(a_shape)

    def grad_weight(self, e: Tensor, a: Tensor, w_shape: torch.Size) -> Tensor:
        """(..., M, K)^T x (..., M, N) -> (..., K, N), summed over broadcast batches."""
        return multiply_rows(a.transpose(-1, -2), e.transpose(-1, -2)).sum_to_size(w_shape)

    def grad_bias(self, e: Tensor) -> Tensor:
        """A product of activations has no bias."""
        raise AssertionError("MatMul has no bias")

    def macs(self, a_shape: torch.Size, w_shape: torch.Size) -> int:
        """Multiply-accumulates of the output."""
        batch: torch.Size = torch.broadcast_shapes(a_shape[:-2], w_shape[:-2])  # type: ignore[no-untyped-call]
        return math.prod(batch) * math.prod(a_shape[-2:]) * w_shape[-1]

    def operand_view(self, matmul: str, operand: str, shape: torch.Size) -> OperandView:
        """K for output, N for grad_input, M for grad_weight."""
        is_last = {"output": operand == "a", "grad_input": True, "grad_weight": False}[matmul]
        return OperandView(matmul, tuple(shape), len(shape) - (1 if is_last else 2))


@dataclass(frozen=True)
class ConvGeometry:
    """A (transposed) convolution of 1, 2 or 3 dimensions.

    a (N, Cin, *space), w (Cout, Cin / groups, *k), or (Cin, Cout / groups, *k) if transposed.
    `end_padding` is what a "same" padding of an even kernel adds at the end of each dimension
    beyond the symmetric `padding`; it is zeros of the grid's value 0, like all padding.
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    transposed: bool = False
    output_padding: tuple[int, ...] = ()
    end_padding: tuple[int, ...] = ()

    second: ClassVar[str] = "weight"

    @property
    def channel_dims(self) -> tuple[int, ...]:
        """Output channels; of a transposed convolution (group, column) pairs."""
        return (0, 2) if self.transposed else (0,)

    @property
    def input_channel_dims(self) -> tuple[int, ...]:
        """The second dimension, unless groups share it."""
        return (1,) if self.groups == 1 and not self.transposed else ()

    def channel_view(self, w_shape: torch.Size) -> tuple[int, ...]:
        """The weight itself; transposed: (G, Cin / G, Cout / G, *k)."""
        if not self.transposed:
            return tuple(w_shape)
        return (self.groups, w_shape[0] // self.groups, *w_shape[1:])

    def grad_bias(self, e: Tensor) -> Tensor:
        """(N, Cout, *space) -> (Cout,)."""
        wide = torch.promote_types(e.dtype, torch.float32)
        return e.sum((0, *range(2, e.dim())), dtype=wide)

    def macs(self, a_shape: torch.Size, w_shape: torch.Size) -> int:
        """Multiply-accumulates of the output."""
        if self.transposed:  # every input pixel meets every weight
            return math.prod(a_shape) * math.prod(w_shape[1:])
        size = self.output_size(a_shape[2:], w_shape[2:])
        return a_shape[0] * math.prod(size) * math.prod(w_shape)

    def operand_view(self, matmul: str, operand: str, shape: torch.Size) -> OperandView:
        """The channels of a group for output and grad_input, the pixels of a map for grad_weight.

        The sum over a kernel's taps has no blocks of its own: blocks run inside the channels.
        """
        if operand == "w":
            grouped = (self.groups, shape[0] // self.groups, *shape[1:])
            is_first = (matmul == "grad_input") != self.transposed
            return OperandView(matmul, grouped, 1 if is_first else 2, grouped, (1, 2))
        if matmul == "grad_weight":
            return OperandView(matmul, (*shape[:2], math.prod(shape[2:])), 2)
        grouped = (shape[0], self.groups, shape[1] // self.groups, *shape[2:])
        return OperandView(matmul, grouped, 2)

    @property
    def num_dims(self) -> int:
        """Spatial dimensions."""
        return len(self.stride)

    def output_size(self, space: Sequence[int], kernel: Sequence[int]) -> tuple[int, ...]:
        """The spatial size of the output of a convolution that is not transposed."""
        ends = self.end_padding or (0,) * self.num_dims
        sides = zip(space, kernel, self.stride, self.padding, ends, self.dilation, strict=True)
        return tuple((n + 2 * p + end - d * (k - 1) - 1) // s + 1 for n, k, s, p, end, d in sides)

    def output(self, a: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        """a x w (+ bias)."""
        with in_float32("conv", a):
            return torch.convolution(
                self._pad(a) if self.end_padding else a, w,
                None if bias is None else bias.to(a.dtype), self.stride, self.padding,
                self.dilation, self.transposed, self.output_padding or (0,) * len(self.stride),
                self.groups,
            )  # fmt: skip

    def grad_input(self, e: Tensor, w: Tensor, a_shape: torch.Size) -> Tensor:
        """The error at the input."""
        padded = list(a_shape)
        for dim, end in enumerate(self.end_padding, start=2):
            padded[dim] += end
        like_input = _empty_like_format(padded, e)
        grad = self._backward(e, like_input, w, (True, False, False))[0]
        for dim in range(2, e.dim() if self.end_padding else 0):
            grad = grad.narrow(dim, 0, a_shape[dim])
        return grad

    def grad_weight(self, e: Tensor, a: Tensor, w_shape: torch.Size) -> Tensor:
        """The gradient of the weight."""
        like_weight = _empty_like_format(w_shape, e)
        a = self._pad(a) if self.end_padding else a
        return self._backward(e, a, like_weight, (False, True, False))[1]

    def _pad(self, a: Tensor) -> Tensor:
        """With the zeros that an even kernel's "same" padding adds at the ends."""
        return F.pad(a, [n for end in reversed(self.end_padding) for n in (0, end)])

    def _backward(
        self, e: Tensor, a: Tensor, w: Tensor, mask: tuple[bool, bool, bool]
    ) -> tuple[Tensor, Tensor, Tensor]:
        with in_float32("conv", e):
            grads: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
                e, a, w, None, self.stride, self.padding, self.dilation, self.transposed,
                self.output_padding or (0,) * len(self.stride), self.groups, mask,
            )  # fmt: skip
        return grads


@dataclass(frozen=True)
class PointwiseGeometry(ConvGeometry):
    """A convolution with a kernel of 1, one group and no padding: a linear layer of pixels.

    A stride selects some of them.
    """


def _empty_like_format(shape: Sequence[int], like: Tensor) -> Tensor:
    """Never read: stands for the operand a backward product does not need, in its layout."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    layout = formats.get(like.dim())
    if layout is None or like.is_contiguous() or not like.is_contiguous(memory_format=layout):
        layout = torch.contiguous_format
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=layout)


# -- views of an operand --------------------------------------------------------------------------


def transposed(q: Quantized) -> Quantized:
    """The last two dimensions exchanged, of the numbers and of scales along them."""
    values, codes, scale, offset = (
        x.transpose(-1, -2) if x is not None and x.dim() > 1 else x
        for x in (q.values, q.codes, q.scale, q.offset)
    )
    return replace(q, values=values, codes=codes, scale=scale, offset=offset)


def as_rows(q: Quantized) -> Quantized:
    """(..., n) as (rows, n); scales along the leading dimensions become one per row."""
    numbers = q.codes if q.values is None else q.values
    assert numbers is not None
    if numbers.dim() == 2:
        return q
    shape = numbers.shape
    rows = math.prod(shape[:-1])
    scale, offset = (
        x
        if x is None or x.numel() == 1
        else x.expand(*shape[:-1], x.shape[-1]).reshape(rows, x.shape[-1])
        for x in (q.scale, q.offset)
    )
    values, codes = (None if x is None else x.reshape(rows, shape[-1]) for x in (q.values, q.codes))
    return replace(q, values=values, codes=codes, scale=scale, offset=offset)


# -- float32 -------------------------------------------------------------------------------------

Product = Literal["matmul", "conv"]
Backend = Literal["cuda", "mkldnn"]
ROUNDED = ("tf32", "bf16")  # settings with which torch rounds the operands of a product

_read: Any = getattr(torch._C, "_get_fp32_precision_getter", None)  # from torch 2.9 on
_write: Any = getattr(torch._C, "_set_fp32_precision_setter", None)


def in_float32(product: Product, x: Tensor) -> AbstractContextManager[None]:
    """`without_tf32` on the device of a tensor, unless it has no float32 to lose."""
    if x.dtype is not torch.float32:
        return NOTHING
    backend: Backend = "cuda" if x.is_cuda else "mkldnn"
    if torch.compiler.is_compiling() or _read is None or _read(backend, product) in ROUNDED:
        return without_tf32(product, backend)
    return NOTHING


def without_tf32(product: Product, backend: Backend = "cuda") -> AbstractContextManager[None]:
    """Products of float32 tensors are exact to float32 within the `with`.

    TF32 keeps 10 of the 23 bits of a mantissa: too few for the values of a grid. cuDNN uses it for
    convolutions by default, cuBLAS if asked to; processors with BF16 instructions use bfloat16 if
    asked to. A compiled graph follows torch's settings: where they allow either, tracing it warns.
    """
    if torch.compiler.is_compiling():
        _warn_of_tf32(product, backend)
        return NOTHING
    if not _uses_tf32(product, backend):
        return NOTHING
    if backend == "mkldnn" and _write is not None:
        return _float32(product, backend)
    return _float32_matmuls() if product == "matmul" else _float32_convolutions()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _warn_of_tf32(product: Product, backend: Backend) -> bool:
    """Warn if a graph that is traced now will round operands; returns whether it will."""
    is_used = _uses_tf32(product, backend)
    if is_used:
        way_out = {
            ("matmul", "cuda"): "torch.backends.cuda.matmul.allow_tf32 = False",
            ("conv", "cuda"): "torch.backends.cudnn.allow_tf32 = False",
            ("matmul", "mkldnn"): "torch.backends.mkldnn.matmul.fp32_precision = 'ieee'",
            ("conv", "mkldnn"): "torch.backends.mkldnn.conv.fp32_precision = 'ieee'",
        }[product, backend]
        warnings.warn(
            f"compiled {'products' if product == 'matmul' else 'convolutions'} of quantized values "
            f"use TF32 or bfloat16, which have too few bits for them; before, set {way_out}",
            BitcycleWarning,
            stacklevel=2,
        )
    return is_used


def _uses_tf32(product: Product, backend: Backend) -> bool:
    if _read is not None:
        return bool(_read(backend, product) in ROUNDED)
    if backend == "mkldnn":
        return bool(product == "matmul" and torch.get_float32_matmul_precision() == "medium")
    read = torch._C._get_cublas_allow_tf32
    return bool(read() if product == "matmul" else torch._C._get_cudnn_allow_tf32())


@contextmanager
def _float32_matmuls() -> Iterator[None]:
    try:
        level = torch.get_float32_matmul_precision()
    except RuntimeError:  # set by `fp32_precision`, which torch refuses to mix with the older one
        with _float32("matmul", "cuda"):
            yield
        return
    of_cpu = None if _read is None else _read("mkldnn", "matmul")
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(level)
        if of_cpu is not None and _read("mkldnn", "matmul") != of_cpu:
            _write("mkldnn", "matmul", of_cpu)  # which the line above sets, too


@contextmanager
def _float32_convolutions() -> Iterator[None]:
    try:
        torch._C._get_cudnn_allow_tf32()
    except RuntimeError:  # the same
        with _float32("conv", "cuda"):
            yield
        return
    torch._C._set_cudnn_allow_tf32(False)
    try:
        yield
    finally:
        torch._C._set_cudnn_allow_tf32(True)


@contextmanager
def _float32(product: Product, backend: Backend) -> Iterator[None]:
    level = _read(backend, product)
    _write(backend, product, "ieee")
    try:
        yield
    finally:
        _write(backend, product, level)
