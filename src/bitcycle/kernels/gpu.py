"""`gpu`: multiplies codes on the tensor cores of a GPU, by Triton, with exact integer sums.

The result differs from float32 products of the same values only by float32 rounding, but for a
scale on the summed axis: the weight of grad_input is then rounded to 16 bits, as `native` does
(`gpu.integers` has the bound). Linear layers and products of two activations are multiplied so;
the rest, and everything where Triton does not run, is a float32 product of the same values. Never
run on a GPU: see docs/gpu.md.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from bitcycle.gpu import driver
from bitcycle.kernels.base import KERNELS, Kernel, Multiply, Products
from bitcycle.kernels.geometry import ConvGeometry, Geometry, MatMulGeometry, multiply_rows
from bitcycle.kernels.matrices import LinearProducts, MatMulProducts, axis_of
from bitcycle.kernels.simulate import SIMULATE, FloatProducts
from bitcycle.native.products import Codes
from bitcycle.ops.codes import decode
from bitcycle.quantizers.base import Quantized


@dataclass(frozen=True)
class GpuKernel(Kernel):
    """Integers on a GPU, where scales allow; float32 values elsewhere."""

    takes_codes: ClassVar[bool] = True

    name: str = "gpu"

    def products(self, geometry: Geometry) -> Products:
        """Of codes."""
        if isinstance(geometry, ConvGeometry):
            return FloatProducts(geometry)
        if isinstance(geometry, MatMulGeometry):
            return MatMulProducts(geometry, _multiply_rows)
        return LinearProducts(geometry, _multiply_rows)

    def prepack(self, y: Quantized, bias: Tensor | None = None) -> Multiply:
        """The steps of a recurrent layer are too small for a GPU's integers."""
        return SIMULATE.prepack(y, bias)

    def reason_against(self, geometry: Geometry) -> str | None:
        """Convolutions."""
        return "a convolution" if isinstance(geometry, ConvGeometry) else None

    def reason_against_device(self, device_type: str) -> str | None:
        """The CPU, and a GPU that Triton does not drive."""
        if device_type not in ("cuda", "meta"):
            return f"its kernels are for GPUs, not for {device_type}"
        return driver.missing_reason()

    def error_bound(self, geometry: Geometry, *, is_bf16: bool = False) -> float:
        """That of folding: one rounding to 16 bits, with one unit for each result channel."""
        if is_bf16 or self.reason_against(geometry) is not None:
            return super().error_bound(geometry, is_bf16=is_bf16)
        return 2.0**-15


KERNELS.register("gpu")(GpuKernel())


def _multiply_rows(x: Quantized, y: Quantized, bias: Tensor | None = None) -> Tensor | None:
    """x (..., K), y (N, K) -> x y^T (+ bias), or both with batches; None: not from these codes."""
    if x.codes is None or y.codes is None or x.codes.shape[-1] != y.codes.shape[-1]:
        return None
    assert x.scale is not None
    assert y.scale is not None
    axes = axis_of(x.scale), axis_of(y.scale)
    has_batches = y.codes.dim() > 2
    if has_batches:
        is_known = axes == ("", "") and x.codes.shape[:-2] == y.codes.shape[:-2]
    else:
        is_known = axes[0] in ("", "row") and axes[1] in ("", "row") or axes == ("", "k")
    if not is_known or (bias is not None and bias.shape != y.codes.shape[:1]):
        return None
    if torch.compiler.is_compiling():
        if not (x.codes.is_cuda and _is_ready()):
            return None
        run: Any = multiply_codes
    elif driver.is_available(x.codes, torch.uint8):
        run = _multiply_codes
    else:
        return None
    first, second = x.codes, y.codes
    if has_batches:
        first, second = first.flatten(0, -3), second.flatten(0, -3)
    elif first.dim() > 2:
        first = first.reshape(-1, first.shape[-1])
    result: Tensor = run(
        first, *_grid(x), second, *_grid(y), bias, axes[1] == "k" and not has_batches
    )
    return result.view(*x.codes.shape[:-1], y.codes.shape[-2])


def _grid(q: Quantized) -> tuple[Tensor, Tensor]:
    """Scale and offset, one or one for each row or step, as vectors."""
    assert q.scale is not None
    assert q.offset is not None
    scale, offset = torch.broadcast_tensors(q.scale, q.offset)  # type: ignore[no-untyped-call]
    return scale.reshape(-1), offset.reshape(-1)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _is_ready() -> bool:
    return driver.is_ready()


def _multiply_codes(
    x: Tensor,
    x_scale: Tensor,
    x_offset: Tensor,
    y: Tensor,
    y_scale: Tensor,
    y_offset: Tensor,
    bias: Tensor | None,
    is_folded: bool,
) -> Tensor:
    """(M, K) x (N, K) or (batches, M, K) x (batches, N, K) -> x y^T (+ bias), in float32.

    is_folded: the scales of y lie on the summed axis.
    """
    kernels: Any = importlib.import_module("bitcycle.gpu.integers")
    half = x_scale  # not read
    a, b = Codes(x, x_scale, x_offset, half), Codes(y, y_scale, y_offset, half)
    result = None
    if 0 in (*x.shape, *y.shape):
        pass
    elif is_folded:
        first, second = kernels.lay_out(a, has_sums=False), kernels.fold(b)
        if first is not None and second is not None:
            result = kernels.multiply_folded(first, second, bias)
    else:
        first, second = kernels.lay_out(a), kernels.lay_out(b)
        if first is not None and second is not None:
            result = kernels.multiply(first, second, bias)
    if result is not None:
        return result.view(*x.shape[:-1], y.shape[-2])
    rows = (1, -1) if is_folded else (-1, 1)
    grids = (x_scale, x_offset, (-1, 1)), (y_scale, y_offset, rows)
    values = [
        decode(codes, *(g if g.numel() == 1 else g.view(shape) for g in (scale, offset)))
        for codes, (scale, offset, shape) in zip((x, y), grids, strict=True)
    ]
    return multiply_rows(values[0], values[1], bias)


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
) -> Tensor:
    return x_scale.new_empty((*x.shape[:-1], y.shape[-2]))
