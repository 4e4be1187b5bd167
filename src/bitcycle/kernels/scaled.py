"""Products of linear layers in FP8, MX and NVFP4 on tensor cores, by `F.scaled_mm`.

The operands of a product are matrices of one recipe (`formats.scaled`), rounded for it. What
NVIDIA's GPUs multiply:

    recipe      compute capability    elements
    fp8_tensor  8.9 and newer         e4m3, e5m2, not e5m2 x e5m2
    fp8_row     8.9 and newer         the same, but e5m2 only as the first operand
    fp8_block   9.0 only              e4m3
    mx          10.0 and newer        e4m3, which has the values of MXFP6 and MXFP4
    nvfp4       10.0 and newer        e2m1

Every other product in these formats is one of their values, in float32. So is one whose call fails:
it warns once, and in a compiled graph, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bitcycle.formats.scaled import Scaled
from bitcycle.gpu import driver
from bitcycle.kernels.base import Products
from bitcycle.kernels.geometry import multiply_rows
from bitcycle.quantizers.base import Quantized

# the compute capabilities, as sm_ numbers: from, and up to
_CLASSES = {
    "fp8_tensor": (89, None),
    "fp8_row": (89, None),
    "fp8_block": (90, 99),
    "mx": (100, None),
    "nvfp4": (100, None),
}
_NAMES = {
    "fp8_tensor": "FP8",
    "fp8_row": "FP8 with a scale per row",
    "fp8_block": "FP8 in blocks of 128",
    "mx": "MX",
    "nvfp4": "NVFP4",
}
SCALED_ERROR = 2.0**-11  # `Kernel.error_bound`: some tensor cores keep 14 bits of a sum of FP8
OUTPUTS = (torch.float32, torch.bfloat16, torch.float16)


def reason_against(recipe: str, device_class: str | None) -> str | None:
    """Why tensor cores of a GPU do not multiply a recipe; None if they do.

    >>> reason_against("nvfp4", "sm_90")
    'NVFP4 needs compute capability 10.0'
    """
    found = re.fullmatch(r"sm_(\d+)", device_class or "")
    if found is None:
        return f"{_NAMES[recipe]} needs a GPU of NVIDIA"
    if not hasattr(F, "scaled_mm"):
        return "this torch has no scaled_mm"
    least, most = _CLASSES[recipe]
    if least <= int(found[1]) <= (most or int(found[1])):
        return None
    only = f"{least // 10}.{least % 10}"
    return f"{_NAMES[recipe]} needs compute capability {only}"


def kinds_on(device_class: str | None) -> list[str]:
    """The kinds of formats that tensor cores of a GPU multiply in their usual recipe.

    >>> kinds_on("sm_90"), kinds_on("sm_100")
    (['fp8'], ['fp8', 'mx', 'nvfp4'])
    """
    usual = {"fp8": "fp8_tensor", "mx": "mx", "nvfp4": "nvfp4"}
    return [kind for kind in usual if reason_against(usual[kind], device_class) is None]


def reason_against_pair(recipe: str, first: str | None, second: str | None) -> str | None:
    """Why tensor cores do not multiply operands stored as such elements; None if they do.

    >>> reason_against_pair("fp8_row", "e5m2", "e4m3")
    >>> reason_against_pair("fp8_row", "e4m3", "e5m2")
    'FP8 with a scale per row takes e5m2 as the first operand only'
    """
    if first is None or second is None:
        return "an operand has no element of tensor cores"
    if first == second == "e5m2":
        return "tensor cores do not multiply e5m2 by e5m2"
    if "e5m2" in (first, second) and recipe in ("fp8_block", "mx"):
        return f"{_NAMES[recipe]} takes no e5m2"
    if second == "e5m2" and recipe == "fp8_row":
        return f"{_NAMES[recipe]} takes e5m2 as the first operand only"
    return None


@dataclass(frozen=True)
class ScaledProducts:
    """The products of a linear layer: of matrices for tensor cores, or the others'."""

    others: Products

    def output(
        self, a: Quantized, w: Quantized, bias: Tensor | None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """(..., in) x (out, in) -> (..., out)."""
        output = _multiply(a, w, bias, dtype)
        if output is None or a.scaled is None:
            return self.others.output(_values(a), _values(w), bias, dtype)
        return output.view(*a.scaled.shape[:-1], output.shape[-1])

    def grad_input(
        self, e: Quantized, w: Quantized, a_shape: torch.Size, dtype: torch.dtype | None = None
    ) -> Tensor:
        """(..., out) x (out, in) -> (..., in)."""
        grad = _multiply(e, w, None, dtype)
        if grad is None:
            return self.others.grad_input(_values(e), _values(w), a_shape, dtype)
        return grad.view(a_shape)

    def grad_weight(
        self, e: Quantized, a: Quantized, w_shape: torch.Size, dtype: torch.dtype | None = None
    ) -> Tensor:
        """(tokens, out)^T x (tokens, in) -> (out, in)."""
        grad = _multiply(e, a, None, dtype)
        if grad is None:
            return self.others.grad_weight(_values(e), _values(a), w_shape, dtype)
        return grad


def _values(q: Quantized) -> Quantized:
    return q if q.scaled is None else Quantized(values=q.dequantize())


def _multiply(
    x: Quantized, y: Quantized, bias: Tensor | None, dtype: torch.dtype | None
) -> Tensor | None:
    """x (M, K), y (N, K) -> x y^T (+ bias), (M, N); None if tensor cores do not multiply them."""
    if x.scaled is None or y.scaled is None:
        return None
    if not torch.compiler.is_compiling():
        return multiply_scaled(x.scaled, y.scaled, bias, dtype)
    result: Tensor = _multiply_traced(*_taken_apart(x.scaled), *_taken_apart(y.scaled), bias, dtype)
    return result


def multiply_scaled(
    x: Scaled, y: Scaled, bias: Tensor | None = None, dtype: torch.dtype | None = None
) -> Tensor | None:
    """x (M, K), y (N, K) -> x y^T (+ bias), (M, N); None if torch cannot multiply them.

    dtype: of the result, by default float32.
    """
    made = dtype if dtype in OUTPUTS else torch.float32
    # scaled_mm adds a bias to results of half precision only, in their precision
    own = bias.to(made) if bias is not None and made is not torch.float32 else None
    if own is not None and len(own) < y.elements.shape[0]:
        own = F.pad(own, [0, y.elements.shape[0] - len(own)])
    first, second = _scales_of(x, is_second=False), _scales_of(y, is_second=True)
    result: Tensor | None = driver.attempt(
        f"scaled_mm: {x.recipe}",
        x.elements,
        lambda: F.scaled_mm(
            x.elements, y.elements.t(), first[0], first[1], second[0], second[1],
            swizzle_a=first[2], swizzle_b=second[2], bias=own, output_dtype=made,
        ),
    )  # fmt: skip
    if result is None:
        return None
    result = result[: x.rows, : y.rows].contiguous()
    if bias is not None and own is None:
        result += bias
    return result if dtype is None else result.to(dtype)


def _scales_of(x: Scaled, *, is_second: bool) -> tuple[list[Tensor], list[Any], list[Any]]:
    """Scales, what each is for, and its layout."""
    kinds, layouts = F.ScalingType, F.SwizzleType
    plain, swizzled = layouts.NO_SWIZZLE, layouts.SWIZZLE_32_4_4
    if x.recipe == "fp8_tensor":
        return [x.scales], [kinds.TensorWise], [plain]
    if x.recipe == "fp8_row":
        return [x.scales.t() if is_second else x.scales], [kinds.RowWise], [plain]
    if x.recipe == "fp8_block":
        kind = kinds.BlockWise128x128 if x.is_tiled else kinds.BlockWise1x128
        return [x.scales], [kind], [plain]
    if x.tensor_scale is None:
        return [x.scales], [kinds.BlockWise1x32], [swizzled]
    both = [kinds.BlockWise1x16, kinds.TensorWise]
    return [x.scales, x.tensor_scale], both, [swizzled, plain]


# -- compiled graphs ------------------------------------------------------------------------------


def _taken_apart(x: Scaled) -> tuple[list[Tensor], list[int], str]:
    tensors = [x.elements, x.scales, *([] if x.tensor_scale is None else [x.tensor_scale])]
    return tensors, [x.rows, x.length, int(x.is_tiled)], x.recipe


def _put_together(tensors: list[Tensor], sizes: list[int], recipe: str) -> Scaled:
    rows, length, is_tiled = sizes
    elements, scales, tensor_scale = (*tensors, None)[:3]
    assert elements is not None
    assert scales is not None
    shape = rows, length
    return Scaled(
        recipe, elements, scales, tensor_scale, *shape, shape, is_tiled=bool(is_tiled)
    )  # fmt: skip


@torch.library.custom_op("bitcycle::multiply_scaled", mutates_args=())
def _multiply_traced(
    x: list[Tensor],
    x_sizes: list[int],
    x_recipe: str,
    y: list[Tensor],
    y_sizes: list[int],
    y_recipe: str,
    bias: Tensor | None,
    dtype: torch.dtype | None,
) -> Tensor:
    """`multiply_scaled`, or the product of the values where that fails."""
    first, second = _put_together(x, x_sizes, x_recipe), _put_together(y, y_sizes, y_recipe)
    result = multiply_scaled(first, second, bias, dtype)
    if result is None:
        result = multiply_rows(first.dequantize(), second.dequantize(), bias).to(dtype=dtype)
    return result


@_multiply_traced.register_fake
def _(
    x: list[Tensor],
    x_sizes: list[int],
    x_recipe: str,
    y: list[Tensor],
    y_sizes: list[int],
    y_recipe: str,
    bias: Tensor | None,
    dtype: torch.dtype | None,
) -> Tensor:
    return x[0].new_empty((x_sizes[0], y_sizes[0]), dtype=dtype or torch.float32)
