"""One quantized product with its backward pass: the only place where operands meet a kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from bitcycle.kernels.base import Kernel
from bitcycle.kernels.choice import MAX_CODE_BITS
from bitcycle.kernels.geometry import Geometry
from bitcycle.kernels.mixed import UNDECIDED
from bitcycle.nn.once import differentiable_once
from bitcycle.nn.saved import NUM_TENSORS, Form, restore, shared_codes, to_save
from bitcycle.nn.seen import LastSeen
from bitcycle.ops.layout import memory_layout
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
    tops: tuple[int, ...] = (32, 32, 32, 32)  # the most bits each role ever takes, as in LEVELS
    second: str = "weight"  # the role of the second operand: weight, or act for a MatMul
    second_keep: tuple[int, ...] = ()  # its channel dimensions
    second_view: tuple[int, ...] = ()  # the shape in which those are dimensions, if another
    input_keep: tuple[int, ...] = ()  # its input channels, for a grid of grad_input's own
    recorder: Recorder | None = None
    seen: LastSeen | None = (
        None  # shares the first operand's codes with the layers before and after
    )
    act_bits: int = 0  # under which it does

    def carrier(self, role: str, x: Tensor, dtype: torch.dtype) -> torch.dtype | None:
        """The dtype of codes if this operand is multiplied as codes, else None."""
        top = self.tops[LEVELS[role]]
        if not self.kernel.takes_codes or x.dtype == torch.float64:
            return None
        return dtype if top <= MAX_CODE_BITS and self.quantizer.integer_range(top) else None


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


def _encode(
    plan: Plan, role: str, x: Tensor, control: Tensor, within: Range | None, dtype: torch.dtype
) -> Quantized:
    if role not in plan.roles:
        return Quantized(values=x)
    assert within is not None
    levels = control[LEVELS[role]]
    carrier = plan.carrier(role, x, dtype)
    codes: dict[str, Any] = {} if carrier is None else {"carrier": carrier}
    quantized = plan.quantizer.encode(role, x, levels, within, **codes)
    if plan.recorder is not None:
        plan.recorder.record(role, x, quantized, levels)
    return replace(quantized, top=plan.tops[LEVELS[role]])


def _encode_first(plan: Plan, a: Tensor, control: Tensor, within: Range | None) -> Quantized:
    if plan.seen is None or "act" not in plan.roles:
        return _encode(plan, "act", a, control, within, torch.uint8)
    key = plan.quantizer, plan.act_bits, plan.carrier("act", a, torch.uint8)
    quantized = plan.seen.codes_of(a, key)
    if quantized is None:
        quantized = _encode(plan, "act", a, control, within, torch.uint8)
        plan.seen.keep_codes(a, key, quantized)
    return replace(quantized, top=plan.tops[LEVELS["act"]])


def _encode_second(
    plan: Plan, w: Tensor, control: Tensor, health: Tensor, within: Range | None
) -> Quantized:
    role = plan.second
    if role != "weight" or role not in plan.roles:
        return _encode(plan, role, w, control, within, plan.kernel.second_dtype)
    view = w.view(plan.second_view) if plan.second_view else w
    within = plan.quantizer.range_of(role, view, plan.second_keep)
    watch(health, role, within)
    if not plan.second_view:
        return _encode(plan, role, w, control, within, plan.kernel.second_dtype)
    float_plan = replace(plan, kernel=UNDECIDED)  # these scales do not broadcast against the weight
    values = _encode(float_plan, role, view, control, within, plan.kernel.second_dtype).values
    assert values is not None
    return Quantized(values=values.view(w.shape))


def _encode_for_input(plan: Plan, w: Tensor, control: Tensor, qw: Quantized) -> Quantized:
    """The weight as grad_input reads it: as the output does, or on a grid of its own."""
    if plan.quantizer.weight_grids == 1 or not plan.input_keep or "weight" not in plan.roles:
        return qw
    within = plan.quantizer.range_of("weight", w, plan.input_keep)
    return _encode(
        replace(plan, recorder=None), "weight", w, control, within, plan.kernel.second_dtype
    )


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
            qa = _encode_first(plan, a, control, a_range)
            qw = _encode_second(plan, w, control, health, w_range)
            output = plan.kernel.output(plan.geometry, qa, qw, bias)
            needs_a, needs_w = ctx.needs_input_grad[:2]
            kept_a = qa if needs_w else Quantized()  # grad_weight reads the input, and only that
            kept_w = _encode_for_input(plan, w, control, qw) if needs_a else Quantized()
            a_tensors, a_form = to_save(kept_a)
            if a_form.is_packed and plan.seen is not None:
                a_tensors = shared_codes(a_tensors, plan.seen, a, (plan.quantizer, plan.act_bits))
            w_tensors, w_form = to_save(kept_w)
        ctx.save_for_backward(*a_tensors, *w_tensors)
        ctx.plan, ctx.health, ctx.has_bias = plan, health, bias is not None
        ctx.control = control  # not saved: a checkpoint's second forward would bring a later clock
        ctx.forms, ctx.shapes, ctx.dtypes = (a_form, w_form), (a.shape, w.shape), (a.dtype, w.dtype)
        output = output.to(a.dtype)
        ctx.layout = memory_layout(output)
        return output

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, e: Tensor) -> tuple[Tensor | None, ...]:
        plan: Plan = ctx.plan
        control = ctx.control
        # noise is numbered in memory order: that of the output, which a traced graph knows too
        e = e.contiguous(memory_format=ctx.layout)
        qa, qw = _restored(ctx)
        (a_shape, w_shape), (a_dtype, w_dtype) = ctx.shapes, ctx.dtypes
        needs_a, needs_w, needs_bias = ctx.needs_input_grad[:3]
        grad_a = grad_w = grad_bias = None
        with _no_autocast(e):
            if needs_a or needs_w:
                e_in, e_w = _encode_error(plan, e, control, ctx.health)
            if needs_a:
                grad_a = plan.kernel.grad_input(plan.geometry, e_in, qw, a_shape).to(a_dtype)
            if needs_w:
                grad_w = plan.kernel.grad_weight(plan.geometry, e_w, qa, w_shape).to(w_dtype)
                if plan.second == "weight" and "grad" in plan.roles:
                    levels = control[LEVELS["grad"]]
                    key, step = noise_key(control[CLOCK]), control[STEP]
                    grad_w = plan.quantizer.encode_grad(grad_w, levels, key, step)
            if needs_bias and ctx.has_bias:
                grad_bias = plan.geometry.grad_bias(e)  # the bias is float32: so is its gradient
        return grad_a, grad_w, grad_bias, None, None, None, None, None, None, None


def _restored(ctx: Any) -> tuple[Quantized, Quantized]:
    return _both(vars(ctx).pop("unpacked", None) or ctx.saved_tensors, ctx.forms)


def _both(saved: Any, forms: tuple[Form, Form]) -> tuple[Quantized, Quantized]:
    return restore(saved[:NUM_TENSORS], forms[0]), restore(saved[NUM_TENSORS:], forms[1])


def product_behind(output: Tensor) -> Any | None:
    """The node of the product that made this tensor, if it keeps both operands, as codes."""
    if type(output.grad_fn) is not _Product._backward_cls:
        return None
    node: Any = output.grad_fn
    keeps_both = all(node.needs_input_grad[:2]) and not node.has_bias
    return node if keeps_both and node.plan.kernel.takes_codes else None


def multiply_again(node: Any) -> Tensor:
    """The output of such a product once more, to the bit, from the codes it keeps.

    For a backward pass that comes before the product's own, which then finds the codes unpacked:
    gradient checkpointing lets a tensor be unpacked once only.
    """
    node.unpacked = node.saved_tensors
    qa, qw = _both(node.unpacked, node.forms)
    with _no_autocast(node.control):
        output: Tensor = node.plan.kernel.output(node.plan.geometry, qa, qw, None)
    return output.to(node.dtypes[0])


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
    carrier = plan.carrier("error", e, torch.uint8)
    codes: dict[str, Any] = {} if carrier is None else {"carrier": carrier}
    for_input, for_weight = plan.quantizer.encode_error(e, levels, within, key, **codes)
    if plan.recorder is not None:
        plan.recorder.record("error", e, for_input, levels)
    top = plan.tops[LEVELS["error"]]
    is_one = for_weight is for_input
    for_input = replace(for_input, top=top)
    return for_input, for_input if is_one else replace(for_weight, top=top)


def _no_autocast(x: Tensor) -> torch.autocast:
    """Grids are float32: an ambient autocast must not lower the products of their values."""
    return torch.autocast(device_type=x.device.type, enabled=False)
