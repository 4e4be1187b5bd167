"""One quantized product and its backward pass, as its plan says.

    forward    output = a^ x w^ (+ bias)          a: input, w: weight, ^: rounded to a grid
    backward   grad_input = e^ x w^               e: the error, the gradient with respect to the
               grad_weight = e^ x a^              output, which both backward products multiply

`nn.rounding` rounds, the functions of the plan multiply, and codes of at most 4 bits are saved two
per byte. Where the native library has a call for a whole direction, that does all of it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from bitcycle.native.layer import NONE, Flags, Given, LayerProduct, can_call, layout_of
from bitcycle.native.operators import trace_backward, trace_forward
from bitcycle.nn.input_cache import SharedCodes
from bitcycle.nn.plan import LayerPlan
from bitcycle.nn.rounding import (
    Recorder,
    differentiable_once,
    encode_error,
    encode_for_grad_input,
    encode_for_grad_weight,
    encode_grad,
    encode_input,
    encode_second,
    keep_input,
    keep_second,
)
from bitcycle.nn.saved import read_operands, restore_operands, save_operand
from bitcycle.ops.layout import memory_layout, with_stride
from bitcycle.quantizers.base import Quantized, Range


def quantized_product(
    plan: LayerPlan,
    a: Tensor,
    w: Tensor,
    bias: Tensor | None,
    control: Tensor,
    health: Tensor,
    a_range: Range | None,
    w_range: Range | None,
    recorder: Recorder | None = None,
    shared: SharedCodes | None = None,
    *,
    dtype: torch.dtype,
) -> Tensor:
    """a x w (+ bias) on the grids of the plan, with quantized backward products.

    Operands may have half precision; grids and sums are float32. dtype: of the output.
    a_range, w_range: of activations, whose running ranges the layer keeps; the range of a weight is
    computed here. `health` turns NaN when an operand is not finite.
    """
    # a compiler loses the state of autocast that an autograd function changes
    with without_autocast(a) if torch.compiler.is_compiling() else nullcontext():
        output: Tensor = _Product.apply(  # type: ignore[no-untyped-call]
            a, w, bias, control, health, *(a_range or (None, None)), *(w_range or (None, None)),
            plan, recorder, shared, dtype,
        )  # fmt: skip
    return output


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
        plan: LayerPlan,
        recorder: Recorder | None,
        shared: SharedCodes | None,
        dtype: torch.dtype,
    ) -> Tensor:
        a_range = (a_low, a_high) if a_low is not None and a_high is not None else None
        w_range = (w_low, w_high) if w_low is not None and w_high is not None else None
        needs_a, needs_w = ctx.needs_input_grad[:2]
        with without_autocast(a, in_function=True):
            qa = encode_input(plan, a, control, a_range, recorder, shared, health)
            qw = encode_second(plan, w, control, health, w_range, recorder)
            output = plan.products.output(qa, qw, bias, dtype)
            qa = keep_input(plan, a, qa) if needs_w else Quantized()
            qw = keep_second(plan, w, qw, control) if needs_a else Quantized()
            a_tensors, a_format = save_operand(qa, a, shared)
            w_tensors, w_format = save_operand(qw)
        ctx.save_for_backward(*a_tensors, *w_tensors)
        ctx.plan, ctx.health, ctx.recorder, ctx.has_bias = plan, health, recorder, bias is not None
        ctx.control = control  # not saved: a checkpoint's second forward would bring a later clock
        ctx.formats, ctx.layout = (a_format, w_format), memory_layout(output)
        ctx.shapes, ctx.dtypes = (a.shape, w.shape), (a.dtype, w.dtype, dtype)
        ctx.w_stride = w.stride()  # autograd keeps a gradient with others, of which DDP warns
        return output

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, e: Tensor) -> tuple[Tensor | None, ...]:
        saved = vars(ctx).pop("unpacked", None) or ctx.saved_tensors
        return *multiply_error(ctx, e, *restore_operands(saved, ctx.formats)), *(None,) * 10


def multiply_error(
    ctx: Any, e: Tensor, qa: Quantized, qw: Quantized
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of the input, the second operand and the bias."""
    plan: LayerPlan = ctx.plan
    control, (needs_a, needs_w, needs_bias) = ctx.control, ctx.needs_input_grad[:3]
    # noise is numbered in memory order: that of the output, which a traced graph knows too
    e = e.contiguous(memory_format=ctx.layout)
    grad_a = grad_w = None
    with without_autocast(e, in_function=True):
        if needs_a or needs_w:
            e_in, e_w = encode_error(
                plan, e, control, ctx.health, ctx.recorder, needs_input=needs_a
            )
        if needs_a:
            qw = encode_for_grad_input(plan, qw, control)
            grad_a = plan.products.grad_input(e_in, qw, ctx.shapes[0], ctx.dtypes[0])
        if needs_w:
            e_w, qa = encode_for_grad_weight(plan, e_w, qa, control)
            grad_w = plan.products.grad_weight(e_w, qa, ctx.shapes[1], ctx.dtypes[1])
            grad_w = with_stride(encode_grad(plan, grad_w, control), ctx.w_stride)
        grad_bias = plan.geometry.grad_bias(e) if needs_bias and ctx.has_bias else None
    return grad_a, grad_w, grad_bias


def without_autocast(x: Tensor, *, in_function: bool = False) -> AbstractContextManager[Any]:
    """Disables autocast on the tensor's device: products of grid values are float32.

    in_function: inside of an autograd function, whose compiled graph has it around the call.
    """
    device = x.device.type
    if device == "meta":
        return nullcontext()
    if torch.compiler.is_compiling():
        is_needed = not in_function
    else:
        is_needed = torch.is_autocast_enabled(device)
    return torch.autocast(device_type=device, enabled=False) if is_needed else nullcontext()


# -- a whole direction in one call ----------------------------------------------------------------


def whole_product(
    plan: LayerPlan,
    a: Tensor,
    w: Tensor,
    bias: Tensor | None,
    control: Tensor,
    health: Tensor,
    ranges: Tensor,
    a_range: Given,
    w_range: Given,
    flags: Flags,
    shared: SharedCodes | None = None,
    *,
    dtype: torch.dtype,
) -> Tensor:
    """`quantized_product` where the plan's `whole` takes the operands.

    control: the layer's, which the call counts and copies; or, traced, a copy that was counted.
    a_range, w_range: given ranges, or (None, None). ranges: the layer's running ones.
    """
    output: Tensor = _WholeProduct.apply(  # type: ignore[no-untyped-call]
        a, w, bias, control, health, ranges, *a_range, *w_range, plan, flags, shared, dtype
    )
    return output


class _WholeProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
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
        plan: LayerPlan,
        flags: Flags,
        shared: SharedCodes | None,
        dtype: torch.dtype,
    ) -> Tensor:
        needs_a = flags.saves and ctx.needs_input_grad[0]
        needs_w = flags.saves and ctx.needs_input_grad[1]
        assert plan.whole is not None
        found = None if shared is None else shared.cache.saved_of(a, shared.key)
        run = trace_forward if torch.compiler.is_compiling() else LayerProduct.forward
        given, needs = ((a_low, a_high), (w_low, w_high)), (needs_w, needs_a)
        output, a_saved, w_saved, ctx.control = run(
            plan.whole, a, w, bias, control, health, ranges, flags, given, needs, found, dtype
        )
        if shared is not None and found is None and a_saved is not None:
            shared.cache.keep_saved(a, shared.key, a_saved)
        ctx.save_for_backward(a_saved if needs_w else None, w_saved)
        ctx.plan, ctx.health, ctx.recorder, ctx.has_bias = plan, health, None, bias is not None
        ctx.operands, ctx.layout = layout_of(a, w, dtype), memory_layout(output)
        ctx.shapes, ctx.dtypes = (a.shape, w.shape), (a.dtype, w.dtype, dtype)
        ctx.w_stride = w.stride()  # autograd keeps a gradient with others, of which DDP warns
        return output

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, e: Tensor) -> tuple[Tensor | None, ...]:
        saved = vars(ctx).pop("unpacked", None) or ctx.saved_tensors
        plan: LayerPlan = ctx.plan
        assert plan.whole is not None
        if not (plan.is_backward_whole and (torch.compiler.is_compiling() or can_call(e))):
            operands = read_operands(plan.whole, ctx.operands, saved)
            return *multiply_error(ctx, e, *operands), *(None,) * 11
        needs_a, needs_w, needs_bias = ctx.needs_input_grad[:3]
        grad_a = grad_w = grad_bias = None
        e = e.contiguous(memory_format=ctx.layout)  # noise is numbered in the order of the output
        assert plan.rule is not None
        if needs_a or needs_w:
            given = plan.quantizer.range_of("error", e) if "error" in plan.rule.given else NONE
            run = trace_backward if torch.compiler.is_compiling() else LayerProduct.backward
            needs = needs_a, needs_w
            grad_a, grad_w = run(
                plan.whole, ctx.operands, e, saved, ctx.control, ctx.health, needs, given
            )
            if grad_w is not None:
                grad_w = with_stride(grad_w.to(ctx.dtypes[1]), ctx.w_stride)
        if needs_bias and ctx.has_bias:
            grad_bias = plan.geometry.grad_bias(e)
        return grad_a, grad_w, grad_bias, *(None,) * 11


# -- an output again ------------------------------------------------------------------------------


def product_node(output: Tensor) -> Any | None:
    """The autograd node of the product that made this tensor, if it saves both as codes."""
    if type(output.grad_fn) not in (_Product._backward_cls, _WholeProduct._backward_cls):
        return None
    node: Any = output.grad_fn
    plan: LayerPlan = node.plan
    saves_both = all(node.needs_input_grad[:2]) and not node.has_bias
    # an operand that a backward product rounds for itself is saved unrounded
    is_rounded = not (plan.grad_input.second.matmul or plan.grad_weight.second.matmul)
    return node if saves_both and is_rounded and plan.kernel.takes_codes else None


def recompute_output(node: Any) -> Tensor:
    """The output of such a product again, bit for bit, from its saved codes.

    For a backward pass that runs before the product's own. That one then finds the codes unpacked,
    because gradient checkpointing unpacks a saved tensor only once.
    """
    node.unpacked = saved = node.saved_tensors
    output: Tensor
    if hasattr(node, "operands"):  # a whole product
        output = node.plan.whole.recompute(node.operands, *saved)
        return output
    qa, qw = restore_operands(saved, node.formats)
    with without_autocast(node.control):
        output = node.plan.products.output(qa, qw, None, node.dtypes[2])
    return output
