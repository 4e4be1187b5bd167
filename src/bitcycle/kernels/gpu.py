"""`gpu`: multiplies codes on the tensor cores of a GPU.

Linear layers and products of two activations are int8 products in Triton with exact integer sums
(`gpu.integers`). The result differs from float32 products of the same values only by float32
rounding, but for a scale on the summed axis: the weight of grad_input is then rounded to 16 bits,
as `native` does. Convolutions are bfloat16 convolutions of centred codes, whose result is rounded
to bfloat16 once (`kernels.convolutions`). The rest, and everything where Triton does not run, is
a float32 product of the same values. Never run on a GPU: see docs/gpu.md.
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
    multiply_rows,
)
from bitcycle.kernels.matrices import LinearProducts, MatMulProducts, axis_of
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
        """Of folding, one rounding to 16 bits; of convolutions also one to bfloat16."""
        if bits is not None and bits.stored_as is not None and isinstance(geometry, LinearGeometry):
            return SCALED_ERROR
        if (bits is not None and bits.is_format) or self.reason_against(geometry) is not None:
            return super().error_bound(geometry, bits)
        folding = 2.0**-15
        return BF16_ERROR + folding if isinstance(geometry, ConvGeometry) else folding


KERNELS.register("gpu")(GpuKernel())


def _multiply_rows(
    x: Quantized, y: Quantized, bias: Tensor | None = None, dtype: torch.dtype | None = None
) -> Tensor | None:
    """x (..., K), y (N, K) -> x y^T (+ bias), or both with batches; None: not from these codes."""
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
        result: Tensor = run(first, *_grid(x), second, *_grid(y), None, False, dtype)
        return result.view(*batch, *result.shape[-2:])
    first, second = x.codes.reshape(prod(x.codes.shape[:-1]), x.codes.shape[-1]), y.codes
    if axes[0] in ("", "row") and axes[1] in ("", "row"):
        result = run(first, *_grid(x), second, *_grid(y), bias, False, dtype)
    elif axes == ("", "k") and bias is None:
        result = run(first, *_grid(x), second, *_grid(y), None, True, dtype)
    elif axes == ("k", "") and bias is None:
        result = run(second, *_grid(y), first, *_grid(x), None, True, dtype).t().contiguous()
    else:
        return None
    return result.view(*x.codes.shape[:-1], y.codes.shape[0])


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
    dtype: torch.dtype | None,
) -> Tensor:
    """(M, K) x (N, K) or (batches, M, K) x (batches, N, K) -> x y^T (+ bias).

    is_folded: the scales of y lie on the summed axis, and there is no bias. dtype: of the result;
    None is float32.
    """
    result = None
    if 0 not in (*x.shape, *y.shape):
        kernels: Any = importlib.import_module("bitcycle.gpu.integers")
        half = x_scale  # not read
        a, b = Codes(x, x_scale, x_offset, half), Codes(y, y_scale, y_offset, half)
        own = dtype if dtype in driver.FLOATS else None  # what the kernels write
        if is_folded:
            result = kernels.multiply_folded(a, b, own)
        else:
            result = kernels.multiply(a, b, bias, own)
    if result is not None:
        return result.to(dtype=dtype)  # type: ignore[no-any-return]
    values = decode(x, *_columns(x_scale, x_offset))
    rows = (y_scale, y_offset) if is_folded else _columns(y_scale, y_offset)
    return multiply_rows(values, decode(y, *rows), bias).to(dtype=dtype)


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
    dtype: torch.dtype | None,
) -> Tensor:
    return x_scale.new_empty((*x.shape[:-1], y.shape[-2]), dtype=dtype)
