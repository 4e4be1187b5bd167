"""The operators that compiled graphs call for a layer's product, one for each direction.

They run `native.layer.LayerProduct`; a graph has all that describes one as numbers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bitcycle.native.encode import FLOATS, Rule
from bitcycle.native.layer import (
    ROLES,
    Flags,
    Given,
    LayerProduct,
    OperandLayout,
    Result,
    code_bytes,
    output_map,
)


def can_trace(product: LayerProduct, a: Tensor, w: Tensor, out_dtype: torch.dtype) -> bool:
    """`LayerProduct.takes` for traced operands."""
    if not all(dtype in FLOATS for dtype in (a.dtype, w.dtype, out_dtype)):
        return False
    if a.numel() == 0 or w.numel() == 0:
        return False
    if product.window:
        if a.dim() != w.dim() or a.shape[1] != w.shape[1] * product.window[-2]:
            return False
        is_last = a.dim() == 4 and a.is_contiguous(memory_format=torch.channels_last)
        fits = all(n > 0 for n in output_map(product.window, a.shape, w.shape))
        return fits and (is_last or a.is_contiguous())
    if product.second == "weight":
        return a.shape[-1] == w.shape[1]
    fits = a.dim() == w.dim() <= 4 and a.shape[-1] == w.shape[-2]
    return fits and a.shape[:-2] == w.shape[:-2]


def trace_forward(
    product: LayerProduct,
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
    """`LayerProduct.forward`, traced.

    The control tensor is one of this call, which counts it already. No input is shared: a compiler
    finds common work by itself.
    """
    (a_low, a_high), (w_low, w_high) = given
    output, first, second = _forward_op(
        a, w, bias, control, health, ranges, a_low, a_high, w_low, w_high,
        _numbers(product), product.floor, flags.momentum,
        [flags.row, int(flags.observes), int(flags.evaluates), int(needs[0]), int(needs[1])],
        out_dtype,
    )  # fmt: skip
    return Result(output, first if needs[0] else None, second if needs[1] else None, control)


def trace_backward(
    product: LayerProduct,
    key: OperandLayout,
    e: Tensor,
    saved: tuple[Tensor | None, Tensor | None],
    control: Tensor,
    health: Tensor | None,
    needs: tuple[bool, bool],
    given: Given,
) -> tuple[Tensor | None, Tensor | None]:
    """`LayerProduct.backward`, traced; a compiled backward pass may not write to `health`."""
    grad_a, grad_w = _backward_op(
        e, *saved, control, *given, _numbers(product), product.floor, *map(list, key[:4]),
        *key[4:6], list(needs),
    )  # fmt: skip
    return grad_a if needs[0] else None, grad_w if needs[1] else None


def _numbers(product: LayerProduct) -> list[int]:
    """All of a product but its floor."""
    flags = (product.is_stochastic, product.has_channels, product.has_rows, *product.packs)
    return [ROLES[product.second], int(product.rule), *map(int, flags), *product.window]


@functools.lru_cache(maxsize=1024)
def _product(numbers: tuple[int, ...], floor: float) -> LayerProduct:
    role, rule, is_stochastic, has_channels, has_rows, packs_a, packs_w, *window = numbers
    return LayerProduct(
        second=next(name for name, slot in ROLES.items() if slot == role),
        window=tuple(window),
        rule=Rule(rule),
        floor=floor,
        is_stochastic=bool(is_stochastic),
        has_channels=bool(has_channels),
        packs=(bool(packs_a), bool(packs_w)),
        has_rows=bool(has_rows),
    )


@torch.library.custom_op("bitcycle::layer_forward", mutates_args=("health", "ranges"))
def _forward_op(
    a: Tensor,
    w: Tensor,
    bias: Tensor | None,
    control: Tensor,
    health: Tensor,
    ranges: Tensor,
    a_low: Tensor | None,
    a_high: Tensor | None,
    w_low: Tensor | None,
    w_high: Tensor | None,
    numbers: Sequence[int],
    floor: float,
    momentum: float,
    flags: Sequence[int],
    out_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    row, observes, evaluates, needs_a, needs_w = flags
    made = _product(tuple(numbers), floor).forward(
        a, w, bias, control, health, ranges,
        Flags(row, False, bool(observes), bool(evaluates), momentum),
        ((a_low, a_high), (w_low, w_high)),
        (bool(needs_a), bool(needs_w)),
        out_dtype=out_dtype,
    )  # fmt: skip
    nothing = a.new_empty(0, dtype=torch.uint8)
    a_saved, w_saved = (nothing.clone() if x is None else x for x in made[1:3])
    return made.output, a_saved, w_saved


@_forward_op.register_fake
def _(a: Tensor, w: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    numbers, (_, _, _, needs_a, needs_w), out_dtype = others[-5], others[-2], others[-1]
    product = _product(tuple(numbers), 0.0)
    is_last = False
    shape: Sequence[int]
    if product.window:
        shape = output_map(product.window, a.shape, w.shape)
        is_last = a.dim() == 4 and any(
            x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
            for x in (a, w)
        )
    elif product.second == "weight":
        shape = (*a.shape[:-1], w.shape[0])
    else:
        shape = (*a.shape[:-1], w.shape[-1])
    layout = torch.channels_last if is_last else torch.contiguous_format
    output = torch.empty(shape, dtype=out_dtype, device=a.device, memory_format=layout)
    channels = w.shape[0] if product.has_channels and product.second == "weight" else 1
    num_floats = 2 * channels + (1 if product.second == "weight" else 3)
    a_rows = math.prod(a.shape[:-1]) if product.has_rows else 1
    a_bytes = code_bytes(a.numel(), product.packs[0]) + 4 * (4 * a_rows + 1) if needs_a else 0
    w_bytes = code_bytes(w.numel(), product.packs[1]) + 4 * num_floats if needs_w else 0
    a_saved, w_saved = (a.new_empty(n, dtype=torch.uint8) for n in (a_bytes, w_bytes))
    return output, a_saved, w_saved


@torch.library.custom_op("bitcycle::layer_backward", mutates_args=())
def _backward_op(
    e: Tensor,
    a_saved: Tensor | None,
    w_saved: Tensor | None,
    control: Tensor,
    low: Tensor | None,
    high: Tensor | None,
    numbers: Sequence[int],
    floor: float,
    a_shape: Sequence[int],
    a_stride: Sequence[int],
    w_shape: Sequence[int],
    w_stride: Sequence[int],
    a_dtype: torch.dtype,
    w_dtype: torch.dtype,
    needs: Sequence[bool],
) -> tuple[Tensor, Tensor]:
    shapes = tuple(a_shape), tuple(a_stride), tuple(w_shape), tuple(w_stride)
    key = OperandLayout(*shapes, a_dtype, w_dtype, e.dtype)
    needs_a, needs_w = needs
    grads = _product(tuple(numbers), floor).backward(
        key, e, (a_saved, w_saved), control, None, (needs_a, needs_w), (low, high)
    )
    grad_a, grad_w = (e.new_empty(0) if grad is None else grad for grad in grads)
    return grad_a, grad_w


@_backward_op.register_fake
def _(e: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    a_shape, _, w_shape, _, a_dtype, w_dtype, needs = others[7:]
    product = _product(tuple(others[5]), 0.0)
    is_last = bool(product.window) and e.dim() == 4 and not e.is_contiguous()
    layout = torch.channels_last if is_last else torch.contiguous_format
    grad_a, grad_w = e.new_empty(0), e.new_empty(0)
    if needs[0]:
        grad_a = torch.empty(a_shape, dtype=a_dtype, device=e.device, memory_format=layout)
    if needs[1] and product.window:
        shape = (*w_shape[:2], *(1, *w_shape[2:])[-2:])  # maps, also of one dimension
        last = torch.channels_last
        grad_w = torch.empty(shape, dtype=torch.float32, device=e.device, memory_format=last)
        grad_w = grad_w.squeeze(2) if e.dim() == 3 else grad_w
    elif needs[1]:
        dtype = torch.float32 if product.second == "weight" else w_dtype
        grad_w = torch.empty(w_shape, dtype=dtype, device=e.device)
    return grad_a, grad_w
