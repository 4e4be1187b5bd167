"""One quantized product with its backward pass: the only place where operands meet a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bitcycle.kernels.base import Kernel
from bitcycle.kernels.geometry import Geometry
from bitcycle.ops.noise import noise_key
from bitcycle.quantizers.base import Quantized, Quantizer, Range

# Slots of a layer's control tensor (int32): level counts by role, then the clock of its noise.
LEVELS = {"weight": 0, "act": 1, "error": 2, "grad": 3}
CLOCK = slice(4, 7)  # [hash(seed, rank, layer), optimizer step, call within the step]
STEP, CALL = 5, 6
CONTROL_SIZE = 7


class Recorder(Protocol):
    """What `collect` hands to the layers: told of every tensor that is put on a grid."""

    def record(self, role: str, x: Tensor, quantized: Quantized, levels: Tensor) -> None:
        """`x` became `quantized`."""


@dataclass(frozen=True)
class Plan:
    """Everything about a product that is not a tensor."""

    quantizer: Quantizer
    kernel: Kernel
    geometry: Geometry
    roles: tuple[str, ...]  # the roles that are quantized now
    second: str = "weight"  # the role of the second operand: weight, or act for a MatMul
    second_keep: tuple[int, ...] = ()  # its channel dimensions
    second_view: tuple[int, ...] = ()  # the shape in which those are dimensions, if another
    recorder: Recorder | None = None


def quantized_product(
    plan: Plan,
    a: Tensor,
    w: Tensor,
    bias: Tensor | None,
    control: Tensor,
    health: Tensor,
    a_range: Range | None,
    w_range: Range | None,
) -> Tensor:
    """a x w (+ bias) on the grids of the plan, with quantized backward products.

    Ranges are given for operands whose role has one that the layer keeps (act); a weight's is
    taken here. `health` collects 0 * range of every operand: NaN once one was not finite.
    """
    a_low, a_high = a_range if a_range is not None else (None, None)
    w_low, w_high = w_range if w_range is not None else (None, None)
    output: Tensor = _Product.apply(a, w, bias, control, health, a_low, a_high, w_low, w_high, plan)  # type: ignore[no-untyped-call]
    return output


def _encode(plan: Plan, role: str, x: Tensor, control: Tensor, within: Range | None) -> Quantized:
    if role not in plan.roles:
        return Quantized(values=x)
    assert within is not None
    levels = control[LEVELS[role]]
    quantized = plan.quantizer.encode(role, x, levels, within)
    if plan.recorder is not None:
        plan.recorder.record(role, x, quantized, levels)
    return quantized


def _encode_second(
    plan: Plan, w: Tensor, control: Tensor, health: Tensor, within: Range | None
) -> Quantized:
    role = plan.second
    if role != "weight" or role not in plan.roles:
        return _encode(plan, role, w, control, within)
    view = w.view(plan.second_view) if plan.second_view else w
    within = plan.quantizer.range_of(role, view, plan.second_keep)
    watch(health, role, within)
    quantized = _encode(plan, role, view, control, within)
    if plan.second_view and quantized.values is not None:
        return Quantized(values=quantized.values.view(w.shape))
    return quantized


def watch(health: Tensor, role: str, within: Range) -> None:
    """Add 0 * (high - low): leaves 0 until a range is NaN or infinite, without looking."""
    spread = within[1] - within[0]
    health[LEVELS[role]].add_(spread if spread.dim() == 0 else spread.sum(), alpha=0)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        a: Tensor,
        w: Tensor,
        bias: Tensor | None,
        control: Tensor,
        health: Tensor,
        a_low: Tensor | None,
        a_high: Tensor | None,
        w_low: Tensor | None,
        w_high: Tensor | None,
        plan: Plan,
    ) -> Tensor:
        a_range = (a_low, a_high) if a_low is not None and a_high is not None else None
        w_range = (w_low, w_high) if w_low is not None and w_high is not None else None
        with _no_autocast(a):
            qa = _encode(plan, "act", a, control, a_range)
            qw = _encode_second(plan, w, control, health, w_range)
            output = plan.kernel.output(plan.geometry, qa, qw, bias)
        ctx.plan, ctx.health, ctx.has_bias = plan, health, bias is not None
        ctx.control = control  # not saved: a checkpoint's second forward would bring a later clock
        ctx.shapes = a.shape, w.shape
        needs_a, needs_w = ctx.needs_input_grad[:2]
        kept_a = qa if needs_w else Quantized()  # grad_weight reads the input, and only that
        kept_w = qw if needs_a else Quantized()
        ctx.save_for_backward(
            kept_a.values, kept_a.codes, kept_a.scale, kept_a.offset,
            kept_w.values, kept_w.codes, kept_w.scale, kept_w.offset,
        )  # fmt: skip
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, e: Tensor) -> tuple[Tensor | None, ...]:
        plan: Plan = ctx.plan
        control = ctx.control
        a_values, a_codes, a_scale, a_offset, *rest = ctx.saved_tensors
        qa = Quantized(values=a_values, codes=a_codes, scale=a_scale, offset=a_offset)
        qw = Quantized(values=rest[0], codes=rest[1], scale=rest[2], offset=rest[3])
        a_shape, w_shape = ctx.shapes
        needs_a, needs_w, needs_bias = ctx.needs_input_grad[:3]
        grad_a = grad_w = grad_bias = None
        with _no_autocast(e):
            if needs_a or needs_w:
                e_in, e_w = _encode_error(plan, e, control, ctx.health)
            if needs_a:
                grad_a = plan.kernel.grad_input(plan.geometry, e_in, qw, a_shape)
            if needs_w:
                grad_w = plan.kernel.grad_weight(plan.geometry, e_w, qa, w_shape)
                if plan.second == "weight" and "grad" in plan.roles:
                    levels = control[LEVELS["grad"]]
                    grad_w = plan.quantizer.encode_grad(grad_w, levels, noise_key(control[CLOCK]))
            if needs_bias and ctx.has_bias:
                grad_bias = plan.geometry.grad_bias(e)  # the bias is float32: so is its gradient
        return grad_a, grad_w, grad_bias, None, None, None, None, None, None, None


def _encode_error(
    plan: Plan, e: Tensor, control: Tensor, health: Tensor
) -> tuple[Quantized, Quantized]:
    if "error" not in plan.roles:
        error = Quantized(values=e)
        return error, error
    within = plan.quantizer.range_of("error", e)
    if not torch.compiler.is_compiling():  # a compiled backward pass may not write to a buffer
        watch(health, "error", within)
    key = noise_key(control[CLOCK]) if plan.quantizer.has_stochastic_error else None
    levels = control[LEVELS["error"]]
    for_input, for_weight = plan.quantizer.encode_error(e, levels, within, key)
    if plan.recorder is not None:
        plan.recorder.record("error", e, for_input, levels)
    return for_input, for_weight


def _no_autocast(x: Tensor) -> torch.autocast:
    """Grids are float32: an ambient autocast must not lower the products of their values."""
    return torch.autocast(device_type=x.device.type, enabled=False)
