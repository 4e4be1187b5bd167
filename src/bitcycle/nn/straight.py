"""Operands of a sum that no kernel multiplies: put on their grids, straight through.

    on_grid:        forward x -> x^,  backward e -> e
    error_on_grid:  forward y -> y,   backward e -> e^

Between the two, autograd differentiates ordinary float32 torch whose operands are on grids.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bitcycle.nn.once import differentiable_once
from bitcycle.nn.product import Plan, _encode, _encode_error
from bitcycle.quantizers.base import Range


def on_grid(plan: Plan, x: Tensor, control: Tensor, within: Range, role: str = "act") -> Tensor:
    """The tensor on the grid of `within`; the rounding has the gradient of the identity."""
    values: Tensor = _OnGrid.apply(x, control, *within, plan, role)  # type: ignore[no-untyped-call]
    return values


def error_on_grid(plan: Plan, y: Tensor, control: Tensor, health: Tensor) -> Tensor:
    """The tensor itself, whose error is put on a grid when it arrives."""
    same: Tensor = _ErrorOnGrid.apply(y, control, health, plan)  # type: ignore[no-untyped-call]
    return same


class _OnGrid(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, control: Tensor, low: Tensor, high: Tensor, plan: Plan, role: str
    ) -> Tensor:
        return _encode(plan, role, x, control, (low, high), torch.uint8).dequantize()

    @staticmethod
    def backward(ctx: Any, e: Tensor) -> tuple[Tensor | None, ...]:
        return e, None, None, None, None, None


class _ErrorOnGrid(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, control: Tensor, health: Tensor, plan: Plan) -> Tensor:
        ctx.plan, ctx.control, ctx.health = plan, control, health
        return y.view_as(y)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, e: Tensor) -> tuple[Tensor | None, ...]:
        for_input, _ = _encode_error(ctx.plan, e, ctx.control, ctx.health)
        return for_input.dequantize(), None, None, None
