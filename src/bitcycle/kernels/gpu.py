"""`gpu`: multiplies codes on the tensor cores of a GPU.

Linear layers, 1x1 convolutions and products of two activations are int8 products in Triton with
exact integer sums (`gpu.integers`). The result differs from float32 products of the same values
only by float32 rounding, but for a scale on the summed axis: the weight of grad_input is then
rounded to 16 bits, as `native` does. Other convolutions are bfloat16 convolutions of centred codes,
whose result is rounded to bfloat16 once (`kernels.convolutions`). The rest, and everything where
Triton does not run, is a float32 product of the same values. Never run on a GPU: see docs/gpu.md.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor

from bitcycle.bits import Bits
from bitcycle.gpu import driver
from bitcycle.kernels.base import BF16_ERROR, KERNELS, Kernel, Multiply, Products
from bitcycle.kernels.convolutions import CentredConvolutions, reason_against
from bitcycle.kernels.geometry import (
    ConvGeometry,
    Geometry,
    LinearGeometry,
    MatMulGeometry,
    PointwiseGeometry,
    multiply_rows,
)
from bitcycle.kernels.matrices import LinearProducts, MatMulProducts, axis_of
from bitcycle.kernels.pointwise import PointwiseProducts
from bitcycle.kernels.scaled import SCALED_ERROR, ScaledProducts
from bitcycle.kernels.simulate import SIMULATE, FloatProducts
from bitcycle.native.products import Codes
from bitcycle.ops.codes import decode
from bitcycle.ops.fused import can_multiply
from bitcycle.quantizers.base import Quantized


@dataclass(frozen=True)
class GpuKernel(Kernel):
    """Integers on a GPU, where scales allow; float32 values elsewhere."""

    takes_codes: ClassVar[bool] = True
    takes_scaled: ClassVar[bool] = True

    name: str = "gpu"
    takes_bf16: bool = True

    def products(self, geometry: Geometry) -> Products:
        """Of codes."""
        if isinstance(geometry, PointwiseGeometry):
            return PointwiseProducts(geometry, _multiply_rows, _multiply_maps)
        if isinstance(geometry, ConvGeometry):
            is_float = self.reason_against(geometry) is not None
            return FloatProducts(geometry) if is_float else CentredConvolutions(geometry)
        if isinstance(geometry, MatMulGeometry):
            return MatMulProducts(geometry, _multiply_rows)
        return ScaledProducts(LinearProducts(geometry, _multiply_rows))

    def prepack(self, y: Quantized, bias: Tensor | None = None) -> Multiply:
        """The steps of a recurrent layer are too small for a GPU's integers."""
        return SIMULATE.prepack(y, bias)

    def reason_against(self, geometry: Geometry) -> str | None:
        """Convolutions that are transposed or in groups."""
        return reason_against(geometry) if isinstance(geometry, ConvGeometry) else None

    def reason_against_device(self, device_type: str) -> str | None:
        """The CPU, and a GPU that Triton does not drive."""
        if device_type not in ("cuda", "meta"):
            return f"its kernels are for GPUs, not for {device_type}"
        return driver.missing_reason()

    def error_bound(self, geometry: Geometry, bits: Bits | None = None) -> float:
        """Of folding, one rounding to 16 bits; of most convolutions also one to bfloat16."""
        if bits is not None and bits.stored_as is not None and isinstance(geometry, LinearGeometry):
            return SCALED_ERROR
        if (bits is not None and bits.is_format) or self.reason_against(geometry) is not None:
            return super().error_bound(geometry, bits)
        folding = 2.0**-15
        return BF16_ERROR + folding if _is_centred(geometry) else folding

    def notes_on(self, geometry: Geometry) -> list[str]:
        """The convolutions that are bfloat16 products, too."""
        found = super().notes_on(geometry)
        return found or (["bfloat16 products"] if _is_centred(geometry) else [])


KERNELS.register("gpu")(GpuKernel())


def _is_centred(geometry: Geometry) -> bool:
    """Whether it is a convolution of centred codes, unless it is one of float32."""
    return isinstance(geometry, ConvGeometry) and not isinstance(geometry, PointwiseGeometry)


def _multiply_rows(
    x: Quantized,
    y: Quantized,
    bias: Tensor | None = None,
    dtype: torch.dtype | None = None,
    is_turned: bool = False,
) -> Tensor | None:
    """x (..., K), y (N, K) -> x y^T (+ bias), or both with batches; None: not from these codes.

    is_turned: the rows of x (batches, M, K) and of the result are the innermost in memory.
    """
    if x.codes is None or y.codes is None or x.codes.shape[-1] != y.codes.shape[-1]:
        return None
    if not can_multiply(x.codes, y.codes) or (bias is not None and bias.shape != y.codes.shape[:1]):
        return None
    axes = _axis_of(x), _axis_of(y)
    run: Any = multiply_codes if torch.compiler.is_compiling() else _multiply_codes
    if y.codes.dim() > 2:
        if axes != ("", ""):
            return None
        batch: Any = torch.broadcast_shapes(x.codes.shape[:-2], y.codes.shape[:-2])  # type: ignore[no-untyped-call]
        both = x.codes, y.codes
        first, second = (c.expand(*batch, *c.shape[-2:]).flatten(0, -3) for c in both)
        result: Tensor = run(first, *_grid(x), second, *_grid(y), None, False, False, dtype)
        return result.view(*batch, *result.shape[-2:])
    first, second = x.codes, y.codes
    if not is_turned:
        first = first.reshape(prod(first.shape[:-1]), first.shape[-1])
    if axes[0] in ("", "row") and axes[1] in ("", "row"):
        result = run(first, *_grid(x), second, *_grid(y), bias, False, is_turned, dtype)
    elif axes == ("", "k") and bias is None:
        result = run(first, *_grid(x), second, *_grid(y), None, True, is_turned, dtype)
    elif axes == ("k", "") and bias is None:
        result = run(second, *_grid(y), first, *_grid(x), None, True, False, dtype).t().contiguous()
    else:
        return None
    return result.view(*x.codes.shape[:-1], y.codes.shape[0])


def _multiply_maps(x: Quantized, y: Quantized, dtype: torch.dtype | None) -> Tensor | None:
    """x (M, maps, P), y (N, maps, P) -> x y^T, summed over maps and P; None: as above."""
    if x.codes is None or y.codes is None or (_axis_of(x), _axis_of(y)) != ("", ""):
        return None
    if not can_multiply(x.codes, y.codes) or x.codes.shape[1:] != y.codes.shape[1:]:
        return None
    run: Any = multiply_codes if torch.compiler.is_compiling() else _multiply_codes
    first, second = x.codes.unsqueeze(0), y.codes.unsqueeze(0)
    result: Tensor = run(first, *_grid(x), second, *_grid(y), None, False, False, dtype)
    return result.squeeze(0)


def _axis_of(q: Quantized) -> str:
    assert q.scale is not None
    return axis_of(q.scale)


def _grid(q: Quantized) -> tuple[Tensor, Tensor]:
    """Scale and offset, one or one for each row or step, as vectors."""
    assert q.scale is not None
    assert q.offset is not None
    offset = q.offset.expand(q.scale.shape)
    return q.scale.reshape(-1).contiguous(), offset.reshape(-1).contiguous()


def _multiply_codes(
    x: Tensor,
    x_scale: Tensor,
    x_offset: Tensor,
    y: Tensor,
    y_scale: Tensor,
    y_offset: Tensor,
    bias: Tensor | None,
    is_folded: bool,
    is_turned: bool,
    dtype: torch.dtype | None,
) -> Tensor:
    """(M, K) x (N, K) -> x y^T (+ bias), with batches in front of x or of both.

    Codes of four dimensions (batches, rows, ...) are summed over the last two. is_folded: the
    scales of y lie on the summed axis, and there is no bias. is_turned: the rows of the result are
    the innermost in memory. dtype: of the result; None is float32.
    """
    result = None
    if 0 not in (*x.shape, *y.shape):
        kernels: Any = importlib.import_module("bitcycle.gpu.integers")
        half = x_scale  # not read
        a, b = Codes(x, x_scale, x_offset, half), Codes(y, y_scale, y_offset, half)
        own = dtype if dtype in driver.FLOATS else None  # what the kernels write
        if is_folded:
            result = kernels.multiply_folded(a, b, own, is_turned=is_turned)
        else:
            result = kernels.multiply(a, b, bias, own, is_turned=is_turned)
    if result is not None:
        return result.to(dtype=dtype)  # type: ignore[no-any-return]
    values = decode(x, *_columns(x_scale, x_offset))
    rows = (y_scale, y_offset) if is_folded else _columns(y_scale, y_offset)
    others = decode(y, *rows)
    if x.dim() == 4:
        values, others = values.flatten(2), others.flatten(2)
    result = multiply_rows(values, others, bias).to(dtype=dtype)
    return result.mT.contiguous().mT if is_turned else result


def _columns(*vectors: Tensor) -> list[Tensor]:
    return [v if v.numel() == 1 else v.unsqueeze(1) for v in vectors]


multiply_codes = torch.library.custom_op(
    "bitcycle::multiply_codes", _multiply_codes, mutates_args=()
)


@multiply_codes.register_fake
def _(
    x: Tensor,
    x_scale: Tensor,
    x_offset: Tensor,
    y: Tensor,
    y_scale: Tensor,
    y_offset: Tensor,
    bias: Tensor | None,
    is_folded: bool,
    is_turned: bool,
    dtype: torch.dtype | None,
) -> Tensor:
    if x.dim() == 4:
        return x_scale.new_empty((x.shape[0], x.shape[1], y.shape[1]), dtype=dtype)
    if is_turned:
        return x_scale.new_empty((x.shape[0], y.shape[0], x.shape[1]), dtype=dtype).mT
    return x_scale.new_empty((*x.shape[:-1], y.shape[-2]), dtype=dtype)
