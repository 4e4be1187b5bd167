"""One quantized product with its backward pass: the only place where operands meet a kernel."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bitcycle.kernels.base import Kernel
from bitcycle.kernels.choice import MAX_CODE_BITS
from bitcycle.kernels.geometry import Geometry
from bitcycle.kernels.mixed import UNDECIDED
from bitcycle.ops.layout import flat, like, memory_layout
from bitcycle.ops.noise import noise_key
from bitcycle.ops.packing import pack_nibbles, unpack_nibbles
from bitcycle.quantizers.base import Quantized, Quantizer, Range


def differentiable_once(backward: Callable[..., Any]) -> Callable[..., Any]:
    """As torch's `once_differentiable`, also where the incoming gradient is a constant.

    Torch's takes that for a sign that nothing can be differentiated, and returns constants: of
    `grad(model(x).sum(), x, create_graph=True)`, a gradient penalty, nothing would be learned, and
    nobody would know.
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


class _Entry:
    """One tensor and what was made of it; never changed to mean another."""

    def __init__(self, x: Tensor) -> None:
        self.reference, self.version, self.address = weakref.ref(x), x._version, x.data_ptr()
        self.ranges: dict[Any, Range] = {}
        self.encoded: dict[Any, tuple[Any, Any, Quantized]] = {}
        self.packed: dict[Any, weakref.ref[Tensor]] = {}

    def is_(self, x: Tensor) -> bool:
        is_same = self.reference() is x and x._version == self.version
        return is_same and x.data_ptr() == self.address


class LastSeen:
    """The last activation that was put on a grid; keeps nothing alive but a few numbers.

    Only results of other operations: a batch may lie in a buffer that its loader writes to again
    without the tensor knowing. Threads (replicas of a model) may share one.

    >>> seen, x = LastSeen(), torch.ones(2, requires_grad=True) * 2
    >>> seen.keep_range(x, "sbm", (x[0], x[1]))
    >>> seen.range_of(x, "sbm") is not None, seen.range_of(x.clone(), "sbm") is not None
    (True, False)
    """

    def __init__(self) -> None:
        self._entry: _Entry | None = None

    def _of(self, x: Tensor) -> _Entry | None:
        entry = self._entry  # read once: another thread may put its own there
        return entry if entry is not None and x.grad_fn is not None and entry.is_(x) else None

    def range_of(self, x: Tensor, quantizer: Any) -> Range | None:
        """The range of this very tensor, if the quantizer has taken it just before."""
        entry = self._of(x)
        return None if entry is None else entry.ranges.get(quantizer)

    def keep_range(self, x: Tensor, quantizer: Any, within: Range) -> None:
        """Remember the range of a tensor; another tensor than the last is a new beginning."""
        if x.grad_fn is None:
            return
        entry = self._of(x) or _Entry(x)
        entry.ranges[quantizer] = within
        self._entry = entry

    def codes_of(self, x: Tensor, key: Any) -> Quantized | None:
        """What this very tensor became under the same rule, bits and carrier, if it still is."""
        entry = self._of(x)
        if entry is None or key not in entry.encoded:
            return None
        values, codes, rest = entry.encoded[key]
        whole = Quantized(
            rest.scale, rest.offset, _alive(values), _alive(codes), rest.half, rest.top
        )
        return None if whole.values is None and whole.codes is None else whole

    def keep_codes(self, x: Tensor, key: Any, q: Quantized) -> None:
        """Remember what a tensor became, without keeping the large part of it alive."""
        entry = self._of(x)
        if entry is None:
            return
        values, codes = (None if t is None else weakref.ref(t) for t in (q.values, q.codes))
        rest = Quantized(scale=q.scale, offset=q.offset, half=q.half, top=q.top)
        entry.encoded[key] = values, codes, rest

    def share(self, x: Tensor, key: Any, packed: Tensor) -> Tensor:
        """The packed codes another layer keeps of this very tensor, or these, now known to all."""
        entry = self._of(x)
        if entry is None:
            return packed
        other = _alive(entry.packed.get(key))
        if other is not None:
            return other
        entry.packed[key] = weakref.ref(packed)
        return packed

    def __reduce__(self) -> Any:
        return LastSeen, ()  # a copy of a model has seen nothing


def _alive(reference: weakref.ref[Tensor] | None) -> Tensor | None:
    return None if reference is None else reference()


def usable() -> bool:
    """Not while a graph is traced: there, common work is the compiler's to find."""
    return not torch.compiler.is_compiling()


NUM_TENSORS = 5
Tensors = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]


@dataclass(frozen=True)
class Form:
    """How to make the operand again from its tensors."""

    top: int
    shape: torch.Size | None = None  # of codes that were packed
    stride: tuple[int, ...] = ()
    dtype: torch.dtype = torch.uint8

    @property
    def is_packed(self) -> bool:
        """Whether two codes share a byte."""
        return self.shape is not None


def to_save(q: Quantized) -> tuple[Tensors, Form]:
    """The tensors to hand to `save_for_backward`, and the rest."""
    codes, form = q.codes, Form(q.top)
    if codes is not None and q.top <= 4:
        form = Form(q.top, codes.shape, codes.stride(), codes.dtype)
        is_compiling = torch.compiler.is_compiling()
        codes = pack_nibbles(codes.reshape(-1) if is_compiling else flat(codes))
    return (q.values, codes, q.scale, q.offset, q.half), form


def shared_codes(tensors: Tensors, seen: LastSeen, x: Tensor, key: Any) -> Tensors:
    """The same with the packed codes that another layer keeps of the same input, if one does."""
    values, codes, scale, offset, half = tensors
    assert codes is not None
    return values, seen.share(x, key, codes), scale, offset, half


def restore(tensors: Tensors, form: Form) -> Quantized:
    """The operand as it was saved."""
    values, codes, scale, offset, half = tensors
    if codes is not None and form.shape is not None:
        numbers = unpack_nibbles(codes, form.shape.numel(), form.dtype)
        if torch.compiler.is_compiling():
            codes = numbers.view(form.shape)
        else:
            model = torch.empty_strided(form.shape, form.stride, device="meta")
            codes = like(numbers, model)
    return Quantized(scale, offset, values, codes, half, form.top)


# Slots of a layer's control tensor (int32): level counts by role, then the clock of its noise.
_PART = 0x5BD1E995  # odd: keeps the noise of a layer's products apart
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


def part_of(control: Tensor, part: int) -> Tensor:
    """The control tensor for one of several products in a call, with noise of its own."""
    if part == 0:
        return control
    control = control.clone()
    control[CLOCK.start] += torch.tensor(part, dtype=torch.int32) * _PART
    return control
