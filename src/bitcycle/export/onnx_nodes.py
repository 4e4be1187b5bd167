"""Two operators that become QuantizeLinear and DequantizeLinear, with the same values in torch.

on_codes:  saturate(rint(x / scale) + zero), then (code - zero) * scale
of_codes:  (code - zero) * scale, a scale and a zero per channel of one axis
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bitcycle.extras import require

PURPOSE = "ONNX files"


@torch.library.custom_op("bitcycle::on_codes", mutates_args=())
def on_codes(x: Tensor, scale: Tensor, zero: Tensor, bits: int) -> Tensor:
    """The values of unsigned codes of `bits`, 4 or 8, of one tensor."""
    shift = zero.to(x.dtype)
    codes = ((x / scale).round() + shift).clamp(0, 2**bits - 1)
    return (codes - shift) * scale


@on_codes.register_fake
def _(x: Tensor, scale: Tensor, zero: Tensor, bits: int) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("bitcycle::of_codes", mutates_args=())
def of_codes(codes: Tensor, scale: Tensor, zero: Tensor, axis: int) -> Tensor:
    """The values that the codes of a weight stand for."""
    shape = [1] * codes.dim()
    shape[axis] = -1
    return (codes.to(scale.dtype) - zero.to(scale.dtype).view(shape)) * scale.view(shape)


@of_codes.register_fake
def _(codes: Tensor, scale: Tensor, zero: Tensor, axis: int) -> Tensor:
    return torch.empty_like(codes, dtype=scale.dtype)


def translations() -> dict[Any, Callable[..., Any]]:
    """How torch.onnx writes the two."""
    op = require("onnxscript", extra="export", purpose=PURPOSE).opset21

    def write_on_codes(x: Any, scale: Any, zero: Any, bits: int) -> Any:
        return op.DequantizeLinear(op.QuantizeLinear(x, scale, zero), scale, zero)

    def write_of_codes(codes: Any, scale: Any, zero: Any, axis: int) -> Any:
        return op.DequantizeLinear(codes, scale, zero, axis=axis)

    return {
        torch.ops.bitcycle.on_codes.default: write_on_codes,
        torch.ops.bitcycle.of_codes.default: write_of_codes,
    }
