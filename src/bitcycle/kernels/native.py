"""`native`: multiplies codes as integers by the native library, with exact sums.

The result differs from float32 products of the same values only by float32 rounding. A scale on
the summed axis, such as the weight's per output channel in grad_input, is folded: the values that
it belongs to are rounded once more, to 16 bits with one scale per result channel, which moves a
result by at most 2^-16 of (their largest value x the sum of the other operand's magnitudes).

The library chooses its instructions by the bits of the step, which makes products of fewer bits
faster where the processor has such instructions. What it does not compute (see
`reason_against`) is a float32 product of the same values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bitcycle.kernels.base import KERNELS, Kernel, Multiply
from bitcycle.kernels.geometry import ConvGeometry
from bitcycle.kernels.simulate import SIMULATE
from bitcycle.native import products
from bitcycle.native.library import library
from bitcycle.native.products import Codes
from bitcycle.ops.layout import memory_layout
from bitcycle.quantizers.base import Quantized

Pair = tuple[int, int]

HAS_LIBRARY = library() is not None  # a constant, so that a compiled graph can read it


@dataclass(frozen=True)
class NativeKernel(Kernel):
    """Integers on the CPU, where scales allow; float32 values elsewhere."""

    takes_codes: ClassVar[bool] = True

    name: str = "native"

    def gemm(self, x: Quantized, y: Quantized, bias: Tensor | None = None) -> Tensor:
        """x y^T (+ bias)."""
        a, b = _codes(x), _codes(y)
        if a is None or b is None:
            return SIMULATE.gemm(x, y, bias)
        if b.codes.dim() > 2:
            return products.gemm(a, b) if _axes(a, b) == ("", "") else SIMULATE.gemm(x, y)
        *leading, length = a.codes.shape
        if len(leading) != 1 and a.scale.numel() == 1:
            a = a._replace(codes=a.codes.reshape(-1, length))
        result = _product(a, b, bias)
        if result is None:
            return SIMULATE.gemm(x, y, bias)
        return result if len(leading) == 1 else result.view(*leading, b.codes.shape[0])

    def prepack(self, y: Quantized, bias: Tensor | None = None) -> Multiply:
        """`gemm` with y packed once."""
        b = _codes(y)
        if b is None or _axis(b.scale) not in ("", "row", "k"):
            return SIMULATE.prepack(y, bias)
        return _Prepacked(y, b, bias)

    def conv_output(
        self, geometry: ConvGeometry, a: Quantized, w: Quantized, bias: Tensor | None
    ) -> Tensor:
        """Input x weight (+ bias)."""
        x, y = _maps(geometry, a, w)
        if x is None or y is None or x.scale.numel() > 1 or not _lies_on(y.scale, 0):
            return SIMULATE.conv_output(geometry, a, w, bias)
        conv = _pairs(geometry)
        size = geometry.output_size(_numbers(a).shape[2:], _numbers(w).shape[2:])
        output = products.conv_output(x, y, bias, (1, *size)[-2:], *conv)
        return _in_layout_of(output, a, w)

    def conv_grad_input(
        self, geometry: ConvGeometry, e: Quantized, w: Quantized, a_shape: torch.Size
    ) -> Tensor:
        """Error x weight; the error may have a scale per sample."""
        x, y = _maps(geometry, e, w)
        if x is None or y is None:
            return SIMULATE.conv_grad_input(geometry, e, w, a_shape)
        size, pairs = (a_shape[1], *(1, *a_shape[2:])[-2:]), _pairs(geometry)
        if _lies_on(y.scale, 0):
            grad = products.conv_grad_input(x, y, size, *pairs)
        elif _lies_on(y.scale, 1) and _is_invertible(geometry, x):
            grad = _turned_convolution(x, y, size, *pairs)
        else:
            return SIMULATE.conv_grad_input(geometry, e, w, a_shape)
        return _in_layout_of(grad, e)

    def conv_grad_weight(
        self, geometry: ConvGeometry, e: Quantized, a: Quantized, w_shape: torch.Size
    ) -> Tensor:
        """Error x input."""
        x, y = _maps(geometry, e, a)
        if x is None or y is None or x.scale.numel() > 1 or y.scale.numel() > 1:
            return SIMULATE.conv_grad_weight(geometry, e, a, w_shape)
        shape = (*w_shape[:2], *(1, *w_shape[2:])[-2:])
        grad = products.conv_grad_weight(x, y, shape, *_pairs(geometry))
        return grad if geometry.num_dims == 2 else grad.squeeze(2)


KERNELS.register("native")(NativeKernel())


def reason_against(geometry: object) -> str | None:
    """Why the library has no product of this geometry; None if it has."""
    if not isinstance(geometry, ConvGeometry):
        return None
    if geometry.transposed:
        return "a transposed convolution"
    return "a convolution of 3 dimensions" if geometry.num_dims == 3 else None


# -- products of matrices -------------------------------------------------------------------------


def _product(a: Codes, b: Codes, bias: Tensor | None) -> Tensor | None:
    """(M, K) x (N, K)^T (+ bias); None if the scales lie on axes that no product has."""
    axes = _axes(a, b)
    if axes in (("", ""), ("", "row")):
        return products.gemm(a, b, bias)
    if axes in (("", "k"), ("k", "k")):
        return products.gemm_folded(_flat(a), _flat(b), bias)
    if axes == ("row", ""):  # a scale per sample: the operands exchange their places
        result = products.gemm(b, a).t().contiguous()
    elif axes == ("k", ""):
        result = products.gemm_folded(b, _flat(a)).t().contiguous()
    else:
        return None
    return result if bias is None else result + bias


class _Prepacked:
    """The second operand as the library reads it, packed when the first bits are known."""

    def __init__(self, y: Quantized, b: Codes, bias: Tensor | None) -> None:
        self._y, self._codes, self._bias = y, b, bias
        self._is_folded = _axis(b.scale) == "k"
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
    return _axis(a.scale), _axis(b.scale)


def _axis(scale: Tensor) -> str:
    """Where the scales of a matrix lie: "" for one, "row", "k" (the summed axis), or "other"."""
    if scale.numel() == 1:
        return ""
    if scale.dim() != 2 or min(scale.shape) != 1:
        return "other"
    return "row" if scale.shape[0] > 1 else "k"


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
    if a is None or b is None or reason_against(geometry) is not None or not _lies_on(a.scale, 0):
        return None, None
    if geometry.num_dims == 1:
        a, b = (each._replace(codes=each.codes.unsqueeze(2)) for each in (a, b))
    return a, b


def _in_layout_of(result: Tensor, *operands: Quantized) -> Tensor:
    """As torch's convolutions: channels-last if an operand is, else contiguous."""
    if _numbers(operands[0]).dim() == 3:
        return result.squeeze(2).contiguous()
    is_kept = any(memory_layout(_numbers(q)) == torch.channels_last for q in operands)
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


def _numbers(q: Quantized) -> Tensor:
    assert q.codes is not None
    return q.codes


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
