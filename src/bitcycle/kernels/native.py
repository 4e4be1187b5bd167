"""`native`: multiplies codes as integers by the native library, with exact sums.

The result differs from float32 products of the same values only by float32 rounding. A scale on
the summed axis, such as the weight's per output channel in grad_input, is folded: the values that
it belongs to are rounded once more, to 16 bits with one scale per result channel, which moves a
result by at most 2^-16 of (their largest value x the sum of the other operand's magnitudes). The
scales of an input's rows are folded into the error in grad_weight.

The library chooses its instructions by the bits of the step, which makes products of fewer bits
faster where the processor has such instructions. What it does not compute (see
`reason_against`) is a float32 product of the same values, or a bfloat16 product of operands at the
level bf16 where the processor has such instructions (`kernels.bf16`). Where the quantizer's grids
follow a rule of the library, a direction of a layer is one call (`layer_product`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bitcycle.bits import Bits
from bitcycle.kernels.base import KERNELS, Kernel, Multiply, Products
from bitcycle.kernels.bf16 import has_instructions
from bitcycle.kernels.geometry import (
    ConvGeometry,
    Geometry,
    LinearGeometry,
    MatMulGeometry,
)
from bitcycle.kernels.matrices import LinearProducts, MatMulProducts, axis_of, numbers_of
from bitcycle.kernels.simulate import SIMULATE, FloatProducts
from bitcycle.native import products
from bitcycle.native.layer import LayerProduct
from bitcycle.native.library import library, missing_reason
from bitcycle.native.products import Codes
from bitcycle.ops.layout import memory_layout
from bitcycle.quantizers.base import GridRule, Quantized

Pair = tuple[int, int]

HAS_LIBRARY = library() is not None  # a constant, so that a compiled graph can read it


@dataclass(frozen=True)
class NativeKernel(Kernel):
    """Integers on the CPU, where scales allow; float32 values elsewhere."""

    takes_codes: ClassVar[bool] = True

    name: str = "native"

    def products(self, geometry: Geometry) -> Products:
        """Of codes."""
        if self.reason_against(geometry) is not None:
            return FloatProducts(geometry)
        if isinstance(geometry, ConvGeometry):
            return ConvProducts(geometry)
        if isinstance(geometry, MatMulGeometry):
            return MatMulProducts(geometry, _multiply_rows)
        return LinearProducts(geometry, _multiply_rows, _fold_into_error)

    def prepack(self, y: Quantized, bias: Tensor | None = None) -> Multiply:
        """With y packed once."""
        b = _codes(y)
        if b is None or axis_of(b.scale) not in ("", "row", "k"):
            return SIMULATE.prepack(y, bias)
        return _Prepacked(y, b, bias)

    def reason_against(self, geometry: Geometry) -> str | None:
        """Transposed convolutions, and those of 3 dimensions."""
        if not isinstance(geometry, ConvGeometry):
            return None
        if geometry.transposed:
            return "a transposed convolution"
        return "a convolution of 3 dimensions" if geometry.num_dims == 3 else None

    def reason_against_device(self, device_type: str) -> str | None:
        """Other devices than the CPU, and a missing library."""
        if device_type not in ("cpu", "meta"):
            return f"the native library has no code for {device_type}"
        return None if HAS_LIBRARY else f"no native library ({missing_reason()})"

    def error_bound(self, geometry: Geometry, bits: Bits | None = None) -> float:
        """That of folding: one rounding to 16 bits."""
        if (bits is not None and bits.is_format) or self.reason_against(geometry) is not None:
            return super().error_bound(geometry, bits)
        return 2.0**-16

    def layer_product(
        self,
        geometry: Geometry,
        rule: GridRule,
        *,
        packs: tuple[bool, bool],
        has_rows: bool = False,
    ) -> LayerProduct | None:
        """Range, codes, product and what is saved, in one call per direction."""
        if not HAS_LIBRARY or self.reason_against(geometry) is not None:
            return None
        if has_rows and (rule.given or not isinstance(geometry, LinearGeometry)):
            return None
        if not isinstance(geometry, (ConvGeometry, LinearGeometry, MatMulGeometry)):
            return None
        return LayerProduct(
            second=geometry.second,
            window=_window(geometry) if isinstance(geometry, ConvGeometry) else (),
            rule=rule.rule,
            floor=rule.floor,
            is_stochastic=rule.is_stochastic,
            has_channels=rule.has_channels,
            packs=packs,
            has_rows=has_rows,
        )


KERNELS.register("native")(NativeKernel(takes_bf16=has_instructions()))


def _window(geometry: ConvGeometry) -> tuple[int, ...]:
    """Stride, padding, end padding and dilation in two dimensions, and groups."""
    stride, padding, dilation, groups = _pairs(geometry)
    ends = geometry.end_padding or (0,) * geometry.num_dims
    return *stride, *padding, *(0, *ends)[-2:], *dilation, groups, geometry.num_dims


# -- the three products ---------------------------------------------------------------------------


@dataclass(frozen=True)
class ConvProducts:
    """A convolution of 1 or 2 dimensions."""

    geometry: ConvGeometry

    def output(
        self, a: Quantized, w: Quantized, bias: Tensor | None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Input x weight (+ bias)."""
        x, y = _maps(self.geometry, a, w)
        if x is None or y is None or x.scale.numel() > 1 or not _lies_on(y.scale, 0):
            return FloatProducts(self.geometry).output(a, w, bias, dtype)
        a_shape, w_shape = numbers_of(a).shape, numbers_of(w).shape
        size = self.geometry.output_size(a_shape[2:], w_shape[2:])
        groups = self.geometry.groups
        fits = a_shape[1] == w_shape[1] * groups and w_shape[0] % groups == 0 and min(size) > 0
        if not fits or (bias is not None and bias.shape != w_shape[:1]):
            return FloatProducts(self.geometry).output(a, w, bias, dtype)  # which torch refuses
        output = products.conv_output(x, y, bias, (1, *size)[-2:], *_pairs(self.geometry))
        return _in_layout_of(output, a, w).to(dtype=dtype)

    def grad_input(
        self, e: Quantized, w: Quantized, a_shape: torch.Size, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Error x weight; the error may have a scale per sample."""
        x, y = _maps(self.geometry, e, w)
        if x is None or y is None:
            return FloatProducts(self.geometry).grad_input(e, w, a_shape, dtype)
        size, pairs = (a_shape[1], *(1, *a_shape[2:])[-2:]), _pairs(self.geometry)
        if _lies_on(y.scale, 0):
            grad = products.conv_grad_input(x, y, size, *pairs)
        elif _lies_on(y.scale, 1) and _is_invertible(self.geometry, x):
            grad = _turned_convolution(x, y, size, *pairs)
        else:
            return FloatProducts(self.geometry).grad_input(e, w, a_shape, dtype)
        return _in_layout_of(grad, e).to(dtype=dtype)

    def grad_weight(
        self, e: Quantized, a: Quantized, w_shape: torch.Size, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Error x input."""
        x, y = _maps(self.geometry, e, a)
        if x is None or y is None or x.scale.numel() > 1 or y.scale.numel() > 1:
            return FloatProducts(self.geometry).grad_weight(e, a, w_shape, dtype)
        shape = (*w_shape[:2], *(1, *w_shape[2:])[-2:])
        grad = products.conv_grad_weight(x, y, shape, *_pairs(self.geometry))
        return (grad if self.geometry.num_dims == 2 else grad.squeeze(2)).to(dtype=dtype)


# -- products of matrices -------------------------------------------------------------------------


def _multiply_rows(
    x: Quantized, y: Quantized, bias: Tensor | None = None, dtype: torch.dtype | None = None
) -> Tensor | None:
    """x (..., K), y (N, K) -> x y^T (+ bias), or both with batches; None: not from these codes.

    Nor from operands that do not fit, which torch then refuses. The result is float32.
    """
    a, b = _codes(x), _codes(y)
    if a is None or b is None or a.codes.shape[-1] != b.codes.shape[-1]:
        return None
    if bias is not None and bias.shape != b.codes.shape[:1]:
        return None
    if b.codes.dim() > 2:
        return products.gemm(a, b) if _axes(a, b) == ("", "") else None
    *leading, length = a.codes.shape
    if len(leading) != 1 and a.scale.numel() == 1:
        a = a._replace(codes=a.codes.reshape(-1, length))
    result = _product(a, b, bias)
    if result is None or len(leading) == 1:
        return result
    return result.view(*leading, b.codes.shape[0])


def _product(a: Codes, b: Codes, bias: Tensor | None) -> Tensor | None:
    """(M, K) x (N, K)^T (+ bias); None if the scales lie on axes that no product has."""
    axes = _axes(a, b)
    if axes in (("", ""), ("", "row"), ("row", ""), ("row", "row")):
        return products.gemm(a, b, bias)
    if axes in (("", "k"), ("k", "k")):
        return products.gemm_folded(_flat(a), _flat(b), bias)
    if axes == ("k", ""):
        result = products.gemm_folded(b, _flat(a)).t().contiguous()
        return result if bias is None else result + bias
    return None


def _fold_into_error(e: Quantized, a: Quantized) -> Tensor | None:
    """e (out, tokens), a (in, tokens) with a scale per token -> e a^T; None: not from these codes.

    The error, which is smaller as a rule, is what is rounded to 16 bits.
    """
    x, y = _codes(a), _codes(e)
    if x is None or y is None or axis_of(x.scale) != "k":
        return None
    return products.gemm_folded(_flat(x), y).t().contiguous()


class _Prepacked:
    """The second operand as the library reads it, packed when the first bits are known."""

    def __init__(self, y: Quantized, b: Codes, bias: Tensor | None) -> None:
        self._y, self._codes, self._bias = y, b, bias
        self._is_folded = axis_of(b.scale) == "k"
        self._packed: Tensor | None = None
        self._values: Multiply | None = None

    def __call__(self, x: Quantized) -> Tensor:
        a = _codes(x)
        if a is None or a.scale.numel() > 1:
            self._values = self._values or SIMULATE.prepack(self._y, self._bias)
            return self._values(x)
        if self._is_folded:
            if self._packed is None:
                self._packed = products.pack_folded(_flat(self._codes))
            return products.gemm_folded(a, _flat(self._codes), self._bias, packed=self._packed)
        if self._packed is None:
            self._packed = products.pack(a.half, self._codes)
        return products.gemm(a, self._codes, self._bias, packed=self._packed)


def _axes(a: Codes, b: Codes) -> tuple[str, str]:
    return axis_of(a.scale), axis_of(b.scale)


# -- operands -------------------------------------------------------------------------------------


def _codes(q: Quantized) -> Codes | None:
    """The codes for the library; None if there are none, or the library does not read them."""
    if q.codes is None or q.half is None or q.codes.device.type != "cpu" or not HAS_LIBRARY:
        return None
    assert q.codes.dtype is torch.uint8
    scale, offset = q.scale, q.offset
    assert scale is not None
    assert offset is not None
    if scale.shape != offset.shape:
        scale, offset = (x.contiguous() for x in torch.broadcast_tensors(scale, offset))  # type: ignore[no-untyped-call]
    return Codes(q.codes, scale, offset, q.half)


def _flat(x: Codes) -> Codes:
    return x._replace(scale=x.scale.reshape(-1), offset=x.offset.reshape(-1))


def _maps(
    geometry: ConvGeometry, x: Quantized, y: Quantized
) -> tuple[Codes, Codes] | tuple[None, None]:
    """Two operands of a convolution as codes with two spatial dimensions.

    The first has one scale, or one for each of its maps.
    """
    a, b = _codes(x), _codes(y)
    if a is None or b is None or not _lies_on(a.scale, 0):
        return None, None
    if geometry.num_dims == 1:
        a, b = (each._replace(codes=each.codes.unsqueeze(2)) for each in (a, b))
    return a, b


def _in_layout_of(result: Tensor, *operands: Quantized) -> Tensor:
    """As torch's convolutions: channels-last if an operand is, else contiguous."""
    if numbers_of(operands[0]).dim() == 3:
        return result.squeeze(2).contiguous()
    is_kept = any(memory_layout(numbers_of(q)) == torch.channels_last for q in operands)
    return result if is_kept else result.contiguous()


def _lies_on(scale: Tensor, dim: int) -> bool:
    """Whether there is one scale, or one for each element of this dimension."""
    return scale.numel() == 1 or scale.shape[dim] == scale.numel()


def _is_invertible(geometry: ConvGeometry, e: Codes) -> bool:
    """Whether grad_input is a convolution of the error."""
    return geometry.groups == 1 and set(geometry.stride) == {1} and e.scale.numel() == 1


def _turned_convolution(
    e: Codes,
    w: Codes,
    size: tuple[int, ...],
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
) -> Tensor:
    """The error convolved with the turned weight: exact for a scale per input channel."""
    codes = w.codes.transpose(0, 1).flip(2, 3)
    reach = [d * (k - 1) - p for d, k, p in zip(dilation, codes.shape[2:], padding, strict=True)]
    turned = w._replace(codes=codes)
    return products.conv_output(e, turned, None, size[1:], stride, reach, dilation, groups)


def _pairs(geometry: ConvGeometry) -> tuple[Pair, Pair, Pair, int]:
    """Stride, padding and dilation in two dimensions; one-dimensional maps have a height of 1."""
    if geometry.num_dims == 2:
        stride, padding, dilation = geometry.stride, geometry.padding, geometry.dilation
        return _pair(stride), _pair(padding), _pair(dilation), geometry.groups
    stride, padding, dilation = (
        (neutral, *given)
        for neutral, given in ((1, geometry.stride), (0, geometry.padding), (1, geometry.dilation))
    )
    return _pair(stride), _pair(padding), _pair(dilation), geometry.groups


def _pair(sides: tuple[int, ...]) -> Pair:
    height, width = sides
    return height, width
