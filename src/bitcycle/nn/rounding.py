"""How the operands of a product are rounded, as its plan says."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bitcycle.formats.rounding import hadamard, round_elements, to_bf16
from bitcycle.nn.control import CLOCK, LEVELS, STEP
from bitcycle.nn.input_cache import SharedCodes
from bitcycle.nn.plan import LayerPlan, Rounding
from bitcycle.ops.affine import value_range
from bitcycle.ops.fused import grids_for
from bitcycle.ops.noise import noise_key
from bitcycle.ops.state import flag_nonfinite
from bitcycle.quantizers.base import OperandView, Quantized, Range
from bitcycle.quantizers.blocks import FP8, MX, NVFP4, BlockQuantizer

BLOCK_QUANTIZERS = (FP8, MX, NVFP4)
HALVES = (torch.bfloat16, torch.float16)
_GRAD_WEIGHT_NOISE = 0x45D9F3B7  # odd: separates the noise of an error that is rounded twice


class Recorder(Protocol):
    """Receives every tensor that a layer rounds while `bitcycle.collect` runs."""

    def record(self, role: str, x: Tensor, quantized: Quantized, levels: Tensor) -> None:
        """`x` was rounded to `quantized`."""


def widen(x: Tensor) -> Tensor:
    """A half-precision tensor in float32, which grids are in; others as they are."""
    return x.float() if x.dtype in HALVES else x


# -- the operands of output -----------------------------------------------------------------------


def encode_input(
    plan: LayerPlan,
    a: Tensor,
    control: Tensor,
    within: Range | None,
    recorder: Recorder | None = None,
    shared: SharedCodes | None = None,
    health: Tensor | None = None,
) -> Quantized:
    """The first operand, an activation; shared: where another layer may have left its codes.

    health: flags that operands without a range turn NaN if they are not finite.
    """
    how = plan.output.first
    shared = shared if how.kind == "integer" or how.as_bf16 else None
    found = None if shared is None else shared.cache.codes_of(a, shared.key)
    if found is not None:
        return found.with_top(how.top)
    quantized = encode_operand(plan, how, "a", a, control, within, health)
    if recorder is not None and how.kind is not None:
        recorder.record("act", a, quantized, control[how.slot])
    if shared is not None:
        shared.cache.keep_codes(a, shared.key, quantized)
    return quantized


def encode_second(
    plan: LayerPlan,
    w: Tensor,
    control: Tensor,
    health: Tensor,
    within: Range | None,
    recorder: Recorder | None = None,
) -> Quantized:
    """The second operand: a weight by its own range, or an activation by `within`."""
    how = plan.output.second
    if how.role == "weight" and how.kind == "integer":
        quantized, found = _encode_weight(plan, how, w, control)
        flag_nonfinite(health, LEVELS["weight"], *found)
    else:
        quantized = encode_operand(plan, how, "w", w, control, within, health)
    if recorder is not None and how.kind is not None:
        recorder.record(how.role, w, quantized, control[how.slot])
    return quantized


def encode_operand(
    plan: LayerPlan,
    how: Rounding,
    operand: str,
    x: Tensor,
    control: Tensor,
    within: Range | None,
    health: Tensor | None = None,
) -> Quantized:
    """A weight or an activation; float32 passes. operand: "a" or "w", as the geometry has it.

    health: gets the flag of an operand that is not checked when its range is taken.
    """
    if how.kind is None:
        return Quantized(values=x)
    if how.as_bf16:
        return _round_to_bf16(x, health, how.slot)
    if x.dtype in HALVES and how.stored_as is None:
        x = widen(x)
    if how.kind != "integer":
        view = plan.geometry.operand_view("output", operand, x.shape)
        is_unchecked = how.role == "weight" or is_checked_when_rounded(x, how)
        flag = health[how.slot] if health is not None and is_unchecked else None
        return _round_format(plan, how, x, control, view, flag=flag)
    assert within is not None
    codes: dict[str, Any] = {"as_codes": True} if how.as_codes else {}
    quantized = plan.quantizer.encode(how.role, x, control[how.slot], within, **codes)
    return quantized.with_top(how.top) if how.as_codes else quantized


def is_checked_when_rounded(x: Tensor, how: Rounding) -> bool:
    """Whether a flag of `health` is set by the rounding of an activation, which has no range then.

    In bfloat16, and in all formats on a GPU, whose kernels flag as they round.
    """
    return how.as_bf16 or (x.is_cuda and how.kind not in (None, "integer"))


def _encode_weight(
    plan: LayerPlan, how: Rounding, w: Tensor, control: Tensor
) -> tuple[Quantized, Range]:
    """The weight on the grid of its own range, and the range."""
    codes: dict[str, Any] = {"as_codes": True} if how.as_codes else {}
    w = w.float() if w.dtype in HALVES else w
    view = w if len(how.keep) == 1 else w.view(plan.geometry.channel_view(w.shape))
    quantized, within = plan.quantizer.quantize(
        "weight", view, control[how.slot], how.keep, **codes
    )
    if view is not w:
        assert quantized.values is not None
        quantized = Quantized(values=quantized.values.view(w.shape))
    return quantized.with_top(how.top) if how.as_codes else quantized, within


def _round_to_bf16(x: Tensor, health: Tensor | None, slot: int) -> Quantized:
    """In bfloat16, with a flag of `health` for what is not finite."""
    return Quantized(values=to_bf16(x, None if health is None else health[slot]))


def _round_format(
    plan: LayerPlan,
    how: Rounding,
    x: Tensor,
    control: Tensor,
    view: OperandView,
    key: Tensor | None = None,
    signs: Tensor | None = None,
    flag: Tensor | None = None,
) -> Quantized:
    """Round to a format that is no grid of integers; the values are float32, or float64."""
    if how.as_bf16:
        return Quantized(values=to_bf16(x, flag))
    numbers = control[how.numbers]
    if how.stored_as is not None and x.numel():
        assert isinstance(plan.quantizer, BlockQuantizer)
        scaled = plan.quantizer.round_for_tensor_cores(
            x, numbers, view, how.stored_as, key, signs, flag
        )
        return Quantized(scaled=scaled)
    if how.kind == "float":
        values = round_elements(x, numbers, flag=flag)
    else:
        assert isinstance(plan.quantizer, BlockQuantizer)
        values = plan.quantizer.round_in_blocks(x, numbers, view, key, signs, flag)
    return Quantized(values=values.to(torch.promote_types(x.dtype, torch.float32)))


# -- the operands of grad_input and grad_weight ---------------------------------------------------


def keep_input(plan: LayerPlan, a: Tensor, qa: Quantized) -> Quantized:
    """The input as it is saved: as output reads it, or unrounded if grad_weight rounds it."""
    return Quantized(values=a) if plan.grad_weight.second.matmul else qa


def keep_second(plan: LayerPlan, w: Tensor, qw: Quantized, control: Tensor) -> Quantized:
    """The second operand as it is saved: as output reads it, on another grid, or unrounded."""
    how = plan.grad_input.second
    if how.matmul:
        return Quantized(values=w)
    return qw if how == plan.output.second else _encode_weight(plan, how, w, control)[0]


def encode_error(
    plan: LayerPlan,
    e: Tensor,
    control: Tensor,
    health: Tensor,
    recorder: Recorder | None = None,
    *,
    needs_input: bool = True,
) -> tuple[Quantized, Quantized]:
    """The error for grad_input and for grad_weight.

    Both are the same object unless the quantizer rounds them differently. Where grad_weight rounds
    for itself, the second is the error itself. needs_input: whether grad_input is formed.
    """
    how, exact = plan.grad_input.first, Quantized(values=e)
    if how.kind is None:
        return exact, exact
    is_watched = not torch.compiler.is_compiling()  # a compiled backward writes to no buffer
    if how.as_bf16 and not how.matmul:
        error = _round_to_bf16(e, health if is_watched else None, how.slot)
        if recorder is not None:
            recorder.record("error", e, error, control[how.slot])
        return error, error
    if e.dtype in HALVES and how.stored_as is None:
        e = widen(e)
    if how.kind == "integer" and not how.matmul:
        key = _error_key(plan, control[CLOCK]) if plan.quantizer.has_stochastic_error else None
        codes = {"as_codes": True} if how.as_codes else {}
        levels = control[how.slot]
        for_input, for_weight, within = plan.quantizer.quantize_error(e, levels, key, **codes)
        if is_watched:
            flag_nonfinite(health, how.slot, *within)
    else:
        is_needed = needs_input or recorder is not None or not how.matmul
        flag = health[how.slot] if is_watched and is_needed and how.kind != "integer" else None
        if is_watched and flag is None:
            flag_nonfinite(health, how.slot, *value_range(e))
        for_input = (
            round_for(plan, "grad_input", how, exact, control, flag=flag) if is_needed else exact
        )
        for_weight = exact if how.matmul else for_input
    if recorder is not None:
        recorder.record("error", e, for_input, control[how.slot])
    return for_input, for_weight


def _error_key(plan: LayerPlan, clock: Tensor) -> Tensor:
    """The key of the noise, or the clock if GPU kernels take that: they make the words at once.

    Not for a quantizer with rules of its own, which may make other keys from the words.
    """
    if not (clock.is_cuda and grids_for(clock, torch.int32)):
        return noise_key(clock)
    rule = plan.quantizer.grid_rule
    is_known = type(plan.quantizer) in BLOCK_QUANTIZERS or (rule is not None and rule.has_error)
    return clock if is_known else noise_key(clock)


def encode_for_grad_input(plan: LayerPlan, w: Quantized, control: Tensor) -> Quantized:
    """The second operand of grad_input: as it was saved, or rounded now."""
    how = plan.grad_input.second
    return round_for(plan, "grad_input", how, w, control) if how.matmul else w


def encode_for_grad_weight(
    plan: LayerPlan, e: Quantized, a: Quantized, control: Tensor
) -> tuple[Quantized, Quantized]:
    """The operands of grad_weight: as they are, or rounded now.

    nvfp4 transforms the tokens of a linear layer by a Hadamard matrix first: the product stays the
    same, and outliers spread over a block.
    """
    for_e, for_a = plan.grad_weight
    signs = None
    if "nvfp4" in (for_e.kind, for_a.kind):
        assert isinstance(plan.quantizer, BlockQuantizer)
        assert e.values is not None
        if plan.geometry.operand_view("grad_weight", "e", e.values.shape).is_tokens:
            signs = plan.quantizer.hadamard_signs(e.values.device)
    if for_e.matmul:
        e = round_for(plan, "grad_weight", for_e, e, control, signs)
    if for_a.matmul:
        a = round_for(plan, "grad_weight", for_a, a, control, signs)
    return e, a


def round_for(
    plan: LayerPlan,
    matmul: str,
    how: Rounding,
    unrounded: Quantized,
    control: Tensor,
    signs: Tensor | None = None,
    flag: Tensor | None = None,
) -> Quantized:
    """An operand of grad_input or grad_weight, from the unrounded tensor.

    signs: of the Hadamard transform of its tokens. flag: of a format.
    """
    x = unrounded.values
    assert x is not None
    operand = "e" if how.role == "error" else "w" if matmul == "grad_input" else "a"
    view = plan.geometry.operand_view(matmul, operand, x.shape)
    if signs is not None and how.kind != "nvfp4":
        wide = torch.promote_types(x.dtype, torch.float32)
        x, signs = hadamard(x.reshape(view.shape), view.dim, signs).to(wide), None
        view = plan.geometry.operand_view(matmul, operand, x.shape)
    if how.kind is None:
        return Quantized(values=x)
    key = None
    if how.role == "error" and plan.quantizer.has_stochastic_error and how.kind != "float":
        clock = control[CLOCK]
        if matmul == "grad_weight":
            clock = clock.clone()
            clock[0].add_(_GRAD_WEIGHT_NOISE)
        key = _error_key(plan, clock)
    if x.dtype in HALVES and how.stored_as is None:
        x = widen(x)
    if how.kind == "integer":
        within = plan.quantizer.range_of(how.role, x, how.keep)
        return plan.quantizer.encode(how.role, x, control[how.slot], within, key)
    return _round_format(plan, how, x, control, view, key, signs, flag)


def encode_grad(plan: LayerPlan, grad: Tensor, control: Tensor) -> Tensor:
    """Round a weight gradient, for rules that have the role grad."""
    how = plan.grad
    if how.kind is None or plan.geometry.second != "weight":
        return grad
    if how.kind == "float":
        return round_elements(grad, control[how.numbers]).to(grad.dtype)
    key = noise_key(control[CLOCK])
    return plan.quantizer.encode_grad(grad, control[how.slot], key, control[STEP])


# -- straight-through rounding, for layers without a product --------------------------------------


def differentiable_once(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Torch's `once_differentiable`, also for a constant incoming gradient.

    Torch takes a constant as a sign that nothing can be differentiated and returns constants.
    A gradient penalty, `grad(model(x).sum(), x, create_graph=True)`, would then silently train
    nothing.
    """
    refusing = once_differentiable(backward)

    @functools.wraps(backward)
    def wrapper(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():  # create_graph=True
            grads = tuple(
                g.detach().requires_grad_() if isinstance(g, torch.Tensor) else g for g in grads
            )
        return refusing(ctx, *grads)

    return wrapper


def round_straight_through(
    plan: LayerPlan,
    x: Tensor,
    control: Tensor,
    within: Range,
    role: str = "act",
    recorder: Recorder | None = None,
) -> Tensor:
    """The tensor rounded to the grid of `within`; the gradient is the identity's."""
    values: Tensor = _StraightThrough.apply(x, control, *within, plan, role, recorder)  # type: ignore[no-untyped-call]
    return values


def round_error_straight_through(
    plan: LayerPlan,
    y: Tensor,
    control: Tensor,
    health: Tensor,
    recorder: Recorder | None = None,
) -> Tensor:
    """The identity; its error is rounded in the backward pass."""
    same: Tensor = _ErrorStraightThrough.apply(y, control, health, plan, recorder)  # type: ignore[no-untyped-call]
    return same


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        control: Tensor,
        low: Tensor,
        high: Tensor,
        plan: LayerPlan,
        role: str,
        recorder: Recorder | None,
    ) -> Tensor:
        # a weight as a linear layer reads it that shares it; else blocks along the last dimension
        how = plan.output.second if role == "weight" else plan.output.first
        operand = "w" if role == "weight" else "a"
        quantized = encode_operand(plan, how, operand, x, control, (low, high))
        if recorder is not None and how.kind is not None:
            recorder.record(role, x, quantized, control[how.slot])
        return quantized.dequantize().to(x.dtype)

    @staticmethod
    def backward(ctx: Any, e: Tensor) -> tuple[Tensor | None, ...]:
        return e, None, None, None, None, None, None


class _ErrorStraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        y: Tensor,
        control: Tensor,
        health: Tensor,
        plan: LayerPlan,
        recorder: Recorder | None,
    ) -> Tensor:
        ctx.plan, ctx.control, ctx.health, ctx.recorder = plan, control, health, recorder
        return y.view_as(y)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, e: Tensor) -> tuple[Tensor | None, ...]:
        for_input, _ = encode_error(ctx.plan, e, ctx.control, ctx.health, ctx.recorder)
        return for_input.dequantize().to(e.dtype), None, None, None, None
