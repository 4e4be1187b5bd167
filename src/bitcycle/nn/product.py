"""One quantized product and its backward pass: where tensors are rounded and multiplied.

    forward    output = a^ x w^ (+ bias)          a: input, w: weight, ^: rounded to a grid
    backward   grad_input = e^ x w^               e: the error, the gradient with respect to the
               grad_weight = e^ x a^              output, which both backward products multiply

`encode_input`, `encode_second`, `encode_error` and `encode_grad` round the four tensors by the
quantizer's rules. A kernel multiplies them. Codes of at most 4 bits are saved for backward two per
byte. Layers that read the same input share its codes (`InputCache`).
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bitcycle.bits import PlainBits
from bitcycle.formats.rounding import hadamard, round_elements
from bitcycle.kernels.base import Kernel, make_kernel
from bitcycle.kernels.choice import MAX_CODE_BITS
from bitcycle.kernels.geometry import Geometry
from bitcycle.ops import state
from bitcycle.ops.affine import value_range
from bitcycle.ops.layout import memory_layout
from bitcycle.ops.noise import noise_key
from bitcycle.ops.packing import pack_codes, unpack_codes
from bitcycle.quantizers.base import OperandView, Quantized, Quantizer, Range
from bitcycle.quantizers.blocks import BlockQuantizer

# Slots of a layer's control tensor (int32): level counts by role, the numbers of each role's format
# (`Format.numbers`), and the clock of its noise.
LEVELS = {"weight": 0, "act": 1, "error": 2, "grad": 3}
NUMBERS = {role: slice(4 + 3 * slot, 7 + 3 * slot) for role, slot in LEVELS.items()}
CLOCK = slice(16, 19)  # [hash(seed, rank, layer), optimizer step, call within the step]
STEP, CALL = 17, 18
CONTROL_SIZE = 19
_GRAD_WEIGHT_NOISE = 0x45D9F3B7  # odd: separates the noise of an error that is rounded twice
_PRODUCT_NOISE = 0x5BD1E995  # odd: separates the noise of a layer's products


class Recorder(Protocol):
    """Receives every tensor that a layer rounds while `bitcycle.collect` runs."""

    def record(self, role: str, x: Tensor, quantized: Quantized, levels: Tensor) -> None:
        """`x` was rounded to `quantized`."""


@dataclass(frozen=True)
class ProductSpec:
    """What a product needs besides tensors."""

    quantizer: Quantizer
    kernel: Kernel
    geometry: Geometry
    roles: tuple[str, ...]  # the roles that have a grid now
    kinds: tuple[str | None, ...] = ()  # of each role's format, as in LEVELS; (): integers
    tops: tuple[int, ...] = (32, 32, 32, 32)  # the most bits each role ever takes, as in LEVELS
    second: str = "weight"  # the role of the second operand: weight, or act for a MatMul
    second_keep: tuple[int, ...] = ()  # its channel dimensions
    second_view: tuple[int, ...] = ()  # the shape in which those are dimensions, if another
    input_keep: tuple[int, ...] = ()  # its input channels, for a separate grid in grad_input
    recorder: Recorder | None = None
    input_cache: InputCache | None = None  # shares the input's codes with neighbouring layers
    act_bits: PlainBits = 0  # the bits of those codes

    def kind(self, role: str) -> str | None:
        """The kind of a role's format; None for float32."""
        if self.kinds:
            return self.kinds[LEVELS[role]]
        return "integer" if role in self.roles else None

    @property
    def is_by_product(self) -> bool:
        """Whether the three matmuls round their operands along different axes."""
        own = self.quantizer.kinds - {"integer", "float"}
        return self.quantizer.scales_by_product and any(kind in own for kind in self.kinds)

    def view(self, matmul: str, operand: str, x: Tensor) -> OperandView:
        """How a matmul reads an operand."""
        return self.geometry.operand_view(matmul, operand, x.shape)

    def code_options(self, role: str, x: Tensor) -> dict[str, Any]:
        """What tells the quantizer to return codes, if this operand is multiplied as codes."""
        top = self.tops[LEVELS[role]]
        if not self.kernel.takes_codes or x.dtype == torch.float64 or top > MAX_CODE_BITS:
            return {}
        return {"as_codes": True} if self.quantizer.integer_range(top) else {}


def quantized_product(
    spec: ProductSpec,
    a: Tensor,
    w: Tensor,
    bias: Tensor | None,
    control: Tensor,
    health: Tensor,
    a_range: Range | None,
    w_range: Range | None,
) -> Tensor:
    """a x w (+ bias) on the grids of the spec, with quantized backward products.

    a_range, w_range: of activations, whose running ranges the layer keeps; the range of a weight is
    computed here. `health` turns NaN when an operand is not finite (`flag_nonfinite`).
    """
    a_low, a_high = a_range if a_range is not None else (None, None)
    w_low, w_high = w_range if w_range is not None else (None, None)
    output: Tensor = _Product.apply(a, w, bias, control, health, a_low, a_high, w_low, w_high, spec)  # type: ignore[no-untyped-call]
    return output


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
        spec: ProductSpec,
    ) -> Tensor:
        a_range = (a_low, a_high) if a_low is not None and a_high is not None else None
        w_range = (w_low, w_high) if w_low is not None and w_high is not None else None
        with without_autocast(a):
            qa = encode_input(spec, a, control, a_range)
            qw = encode_second(spec, w, control, health, w_range)
            output = spec.geometry.output(spec.kernel, qa, qw, bias)
            needs_a, needs_w = ctx.needs_input_grad[:2]
            if spec.is_by_product:  # backward rounds them along other axes
                qa, qw = Quantized(values=a), Quantized(values=w)
            a_tensors, a_format = save_operand(qa if needs_w else Quantized())
            if a_format.is_packed and spec.input_cache is not None:
                values, codes, *grid = a_tensors
                assert codes is not None
                codes = spec.input_cache.share(a, (spec.quantizer, spec.act_bits), codes)
                a_tensors = (values, codes, *grid)
            if needs_a and not spec.is_by_product:
                qw = encode_weight_for_grad_input(spec, w, control, qw)
            w_tensors, w_format = save_operand(qw if needs_a else Quantized())
        ctx.save_for_backward(*a_tensors, *w_tensors)
        ctx.spec, ctx.health, ctx.has_bias = spec, health, bias is not None
        ctx.control = control  # not saved: a checkpoint's second forward would bring a later clock
        ctx.formats = a_format, w_format
        ctx.shapes, ctx.dtypes = (a.shape, w.shape), (a.dtype, w.dtype)
        output = output.to(a.dtype)
        ctx.layout = memory_layout(output)
        return output

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, e: Tensor) -> tuple[Tensor | None, ...]:
        spec: ProductSpec = ctx.spec
        # noise is numbered in memory order: that of the output, which a traced graph knows too
        e = e.contiguous(memory_format=ctx.layout)
        saved = vars(ctx).pop("unpacked", None) or ctx.saved_tensors
        qa, qw = _restore_operands(saved, ctx.formats)
        (a_shape, w_shape), (a_dtype, w_dtype) = ctx.shapes, ctx.dtypes
        needs_a, needs_w, needs_bias = ctx.needs_input_grad[:3]
        grad_a = grad_w = grad_bias = None
        with without_autocast(e):
            if needs_a or needs_w:
                e_in, e_w = encode_error(spec, e, ctx.control, ctx.health, needs_input=needs_a)
            if needs_a:
                if spec.is_by_product:
                    assert qw.values is not None
                    qw = encode_weight_for_grad_input(spec, qw.values, ctx.control, qw)
                grad_a = spec.geometry.grad_input(spec.kernel, e_in, qw, a_shape).to(a_dtype)
            if needs_w:
                e_w, qa = encode_for_grad_weight(spec, e_w, qa, ctx.control)
                grad_w = spec.geometry.grad_weight(spec.kernel, e_w, qa, w_shape).to(w_dtype)
                if spec.second == "weight":
                    grad_w = encode_grad(spec, grad_w, ctx.control)
            if needs_bias and ctx.has_bias:
                grad_bias = spec.geometry.grad_bias(e)  # the bias is float32: so is its gradient
        return grad_a, grad_w, grad_bias, None, None, None, None, None, None, None


def _restore_operands(
    saved: tuple[Tensor | None, ...], formats: tuple[SavedFormat, SavedFormat]
) -> tuple[Quantized, Quantized]:
    a, w = saved[:NUM_SAVED_TENSORS], saved[NUM_SAVED_TENSORS:]
    return restore_operand(a, formats[0]), restore_operand(w, formats[1])


def product_node(output: Tensor) -> Any | None:
    """The autograd node of the product that made this tensor, if it saves both as codes."""
    if type(output.grad_fn) is not _Product._backward_cls:
        return None
    node: Any = output.grad_fn
    saves_both = all(node.needs_input_grad[:2]) and not node.has_bias
    return node if saves_both and node.spec.kernel.takes_codes else None


def recompute_output(node: Any) -> Tensor:
    """The output of such a product again, bit for bit, from its saved codes.

    For a backward pass that runs before the product's own. That one then finds the codes unpacked,
    because gradient checkpointing unpacks a saved tensor only once.
    """
    node.unpacked = node.saved_tensors
    qa, qw = _restore_operands(node.unpacked, node.formats)
    with without_autocast(node.control):
        output: Tensor = node.spec.geometry.output(node.spec.kernel, qa, qw, None)
    return output.to(node.dtypes[0])


def without_autocast(x: Tensor) -> torch.autocast:
    """Disables autocast on the tensor's device: products of grid values are float32."""
    return torch.autocast(device_type=x.device.type, enabled=False)


def control_for_product(control: Tensor, index: int) -> Tensor:
    """The control tensor for one of several products in a call, with separate noise."""
    if index == 0:
        return control
    control = control.clone()
    control[CLOCK.start] += torch.tensor(index, dtype=torch.int32) * _PRODUCT_NOISE
    return control


# -- rounding -----------------------------------------------------------------------------------


def encode_operand(
    spec: ProductSpec,
    role: str,
    x: Tensor,
    control: Tensor,
    within: Range | None,
    view: OperandView | None = None,
) -> Quantized:
    """Round a weight or an activation; float32 roles pass through.

    view: for formats with blocks; without it they run along the last dimension.
    """
    kind = spec.kind(role)
    if kind is None:
        return Quantized(values=x)
    if kind != "integer":
        quantized = encode_format(spec, role, x, control, view)
        if spec.recorder is not None:
            spec.recorder.record(role, x, quantized, control[LEVELS[role]])
        return quantized
    assert within is not None
    levels = control[LEVELS[role]]
    quantized = spec.quantizer.encode(role, x, levels, within, **spec.code_options(role, x))
    if spec.recorder is not None:
        spec.recorder.record(role, x, quantized, levels)
    return quantized.with_top(spec.tops[LEVELS[role]])


def encode_format(
    spec: ProductSpec,
    role: str,
    x: Tensor,
    control: Tensor,
    view: OperandView | None,
    key: Tensor | None = None,
    signs: Tensor | None = None,
) -> Quantized:
    """Round to a format that is no grid of integers; the values are float32, or float64."""
    numbers = control[NUMBERS[role]]
    if spec.kind(role) == "float":
        values = round_elements(x, numbers)
    else:
        assert isinstance(spec.quantizer, BlockQuantizer)
        view = view or OperandView("output", tuple(x.shape), x.dim() - 1)
        values = spec.quantizer.round_in_blocks(x, numbers, view, key, signs)
    return Quantized(values=values.to(torch.promote_types(x.dtype, torch.float32)))


def round_for(
    spec: ProductSpec,
    matmul: str,
    role: str,
    x: Tensor,
    control: Tensor,
    signs: Tensor | None = None,
) -> Quantized:
    """Round an operand of grad_input or grad_weight, for quantizers that scale by product.

    signs: of the Hadamard transform of its tokens.
    """
    kind = spec.kind(role)
    operand = "e" if role == "error" else "w" if matmul == "grad_input" else "a"
    view = spec.view(matmul, operand, x)
    if signs is not None and kind != "nvfp4":
        wide = torch.promote_types(x.dtype, torch.float32)
        x, signs = hadamard(x.reshape(view.shape), view.dim, signs).to(wide), None
        view = spec.view(matmul, operand, x)
    if kind is None:
        return Quantized(values=x)
    key = None
    if role == "error" and spec.quantizer.has_stochastic_error and kind != "float":
        clock = control[CLOCK]
        if matmul == "grad_weight":
            clock = clock.clone()
            clock[0] += torch.tensor(_GRAD_WEIGHT_NOISE, dtype=torch.int32)
        key = noise_key(clock)
    if kind == "integer":
        within = spec.quantizer.range_of(role, x)
        return spec.quantizer.encode(role, x, control[LEVELS[role]], within, key)
    return encode_format(spec, role, x, control, view, key, signs)


def encode_for_grad_weight(
    spec: ProductSpec, e: Quantized, a: Quantized, control: Tensor
) -> tuple[Quantized, Quantized]:
    """The operands of grad_weight: as they are, or rounded now for quantizers by product.

    Those transform the tokens of a linear layer by a Hadamard matrix first, if they have one: the
    product stays the same, and outliers spread over a block.
    """
    if not spec.is_by_product:
        return e, a
    assert isinstance(spec.quantizer, BlockQuantizer)
    assert e.values is not None
    assert a.values is not None
    signs = None
    is_rounded = "nvfp4" in (spec.kind("error"), spec.kind("act"))
    if is_rounded and spec.view("grad_weight", "e", e.values).is_tokens:
        signs = spec.quantizer.hadamard_signs(e.values.device)
    error = round_for(spec, "grad_weight", "error", e.values, control, signs)
    return error, round_for(spec, "grad_weight", "act", a.values, control, signs)


def encode_input(spec: ProductSpec, a: Tensor, control: Tensor, within: Range | None) -> Quantized:
    """Round the first operand, an activation; its codes come from the input cache if they can."""
    if spec.kind("act") != "integer":
        return encode_operand(spec, "act", a, control, within, spec.view("output", "a", a))
    if spec.input_cache is None or "act" not in spec.roles:
        return encode_operand(spec, "act", a, control, within)
    key = spec.quantizer, spec.act_bits, bool(spec.code_options("act", a))
    quantized = spec.input_cache.codes_of(a, key)
    if quantized is not None:
        return quantized.with_top(spec.tops[LEVELS["act"]])
    quantized = encode_operand(spec, "act", a, control, within)
    spec.input_cache.keep_codes(a, key, quantized)
    return quantized


def encode_second(
    spec: ProductSpec, w: Tensor, control: Tensor, health: Tensor, within: Range | None
) -> Quantized:
    """Round the second operand: a weight by its own range, or an activation by `within`."""
    role, kind = spec.second, spec.kind(spec.second)
    if kind != "integer":
        if role == "weight" and kind is not None:
            flag_nonfinite(health, role, value_range(w))
        return encode_operand(spec, role, w, control, within, spec.view("output", "w", w))
    if role != "weight":
        return encode_operand(spec, role, w, control, within)
    if not spec.second_view:
        weight, within = _quantize_weight(spec, w, control, spec.second_keep)
        flag_nonfinite(health, role, within)
        return weight
    # these scales do not broadcast against the weight
    float_spec = replace(spec, kernel=make_kernel("simulate"))
    view = w.view(spec.second_view)
    weight, within = _quantize_weight(float_spec, view, control, spec.second_keep)
    flag_nonfinite(health, role, within)
    assert weight.values is not None
    return Quantized(values=weight.values.view(w.shape))


def _quantize_weight(
    spec: ProductSpec, w: Tensor, control: Tensor, keep: tuple[int, ...]
) -> tuple[Quantized, Range]:
    """The weight on the grid of its own range, and the range."""
    levels, options = control[LEVELS["weight"]], spec.code_options("weight", w)
    quantized, within = spec.quantizer.quantize("weight", w, levels, keep, **options)
    if spec.recorder is not None:
        spec.recorder.record("weight", w, quantized, levels)
    return quantized.with_top(spec.tops[LEVELS["weight"]]), within


def encode_weight_for_grad_input(
    spec: ProductSpec, w: Tensor, control: Tensor, qw: Quantized
) -> Quantized:
    """The weight that grad_input reads: the output's, or one with a range per input channel.

    In blocks along another axis, it is rounded anew. Of two activations, the second is meant.
    """
    if spec.is_by_product:
        return round_for(spec, "grad_input", spec.second, w, control)
    if spec.quantizer.weight_grids == 1 or not spec.input_keep or "weight" not in spec.roles:
        return qw
    silent = replace(spec, recorder=None)
    return _quantize_weight(silent, w, control, spec.input_keep)[0]


def encode_error(
    spec: ProductSpec, e: Tensor, control: Tensor, health: Tensor, *, needs_input: bool = True
) -> tuple[Quantized, Quantized]:
    """Round the error for grad_input and for grad_weight.

    Both results are the same object unless the quantizer rounds them differently. Quantizers by
    product round the second in `encode_for_grad_weight`. needs_input: whether grad_input is formed.
    """
    kind = spec.kind("error")
    if kind != "integer" or spec.is_by_product:
        return _encode_error_format(spec, e, control, health, kind, needs_input)
    key = noise_key(control[CLOCK]) if spec.quantizer.has_stochastic_error else None
    levels = control[LEVELS["error"]]
    options = spec.code_options("error", e)
    for_input, for_weight, within = spec.quantizer.quantize_error(e, levels, key, **options)
    if not torch.compiler.is_compiling():  # a compiled backward pass may not write to a buffer
        flag_nonfinite(health, "error", within)
    if spec.recorder is not None:
        spec.recorder.record("error", e, for_input, levels)
    top = spec.tops[LEVELS["error"]]
    if for_weight is for_input:
        error = for_input.with_top(top)
        return error, error
    return for_input.with_top(top), for_weight.with_top(top)


def _encode_error_format(
    spec: ProductSpec,
    e: Tensor,
    control: Tensor,
    health: Tensor,
    kind: str | None,
    needs_input: bool,
) -> tuple[Quantized, Quantized]:
    """`encode_error` where roles have formats, or the error is float32."""
    exact = Quantized(values=e)
    if kind is None:
        return exact, exact
    if not torch.compiler.is_compiling():  # a compiled backward pass may not write to a buffer
        flag_nonfinite(health, "error", value_range(e))
    is_both = not spec.is_by_product
    if not (is_both or needs_input or spec.recorder is not None):
        return exact, exact
    error = round_for(spec, "grad_input", "error", e, control)
    if spec.recorder is not None:
        spec.recorder.record("error", e, error, control[LEVELS["error"]])
    return error, error if is_both else exact


def encode_grad(spec: ProductSpec, grad: Tensor, control: Tensor) -> Tensor:
    """Round a weight gradient, for rules that have the role grad."""
    if spec.kind("grad") == "float":
        return round_elements(grad, control[NUMBERS["grad"]]).to(grad.dtype)
    if "grad" not in spec.roles:
        return grad
    levels, key = control[LEVELS["grad"]], noise_key(control[CLOCK])
    return spec.quantizer.encode_grad(grad, levels, key, control[STEP])


def flag_nonfinite(health: Tensor, role: str, within: Range) -> None:
    """Add 0 * (high - low): 0 for finite ranges, else NaN, without reading the device."""
    state.flag_nonfinite(health, LEVELS[role], *within)


# -- straight-through rounding, for layers without a product -------------------------------------


def round_straight_through(
    spec: ProductSpec, x: Tensor, control: Tensor, within: Range, role: str = "act"
) -> Tensor:
    """The tensor rounded to the grid of `within`; the gradient is the identity's."""
    values: Tensor = _StraightThrough.apply(x, control, *within, spec, role)  # type: ignore[no-untyped-call]
    return values


def round_error_straight_through(
    spec: ProductSpec, y: Tensor, control: Tensor, health: Tensor
) -> Tensor:
    """The identity; its error is rounded in the backward pass."""
    same: Tensor = _ErrorStraightThrough.apply(y, control, health, spec)  # type: ignore[no-untyped-call]
    return same


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        control: Tensor,
        low: Tensor,
        high: Tensor,
        spec: ProductSpec,
        role: str,
    ) -> Tensor:
        # a weight as a linear layer reads it that shares it
        view = spec.view("output", "w", x) if role == "weight" else None
        return encode_operand(spec, role, x, control, (low, high), view).dequantize().to(x.dtype)

    @staticmethod
    def backward(ctx: Any, e: Tensor) -> tuple[Tensor | None, ...]:
        return e, None, None, None, None, None


class _ErrorStraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, control: Tensor, health: Tensor, spec: ProductSpec) -> Tensor:
        ctx.spec, ctx.control, ctx.health = spec, control, health
        return y.view_as(y)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, e: Tensor) -> tuple[Tensor | None, ...]:
        for_input, _ = encode_error(ctx.spec, e, ctx.control, ctx.health)
        return for_input.dequantize().to(e.dtype), None, None, None


# -- operands saved for the backward pass --------------------------------------------------------

NUM_SAVED_TENSORS = 5  # of one operand
SavedTensors = tuple[Tensor | None, ...]  # values, codes, scale, offset, half


@dataclass(frozen=True)
class SavedFormat:
    """How `restore_operand` reads the tensors of a saved operand."""

    top: int
    shape: torch.Size | None = None  # of codes that were packed
    stride: tuple[int, ...] = ()

    @property
    def is_packed(self) -> bool:
        """Whether two codes share a byte."""
        return self.shape is not None


def save_operand(q: Quantized) -> tuple[SavedTensors, SavedFormat]:
    """The tensors to pass to `save_for_backward`, and how to read them."""
    codes, saved_format = q.codes, SavedFormat(q.top)
    if codes is not None and q.top <= 4:
        saved_format = SavedFormat(q.top, codes.shape, codes.stride())
        codes = pack_codes(codes)
    return (q.values, codes, q.scale, q.offset, q.half), saved_format


def restore_operand(tensors: SavedTensors, saved_format: SavedFormat) -> Quantized:
    """The operand as it was before `save_operand`."""
    values, codes, scale, offset, half = tensors
    shape = saved_format.shape
    if codes is not None and shape is not None:
        codes = unpack_codes(codes, shape, saved_format.stride)
    return Quantized(scale, offset, values, codes, half, saved_format.top)


# -- one input, several layers -------------------------------------------------------------------


class InputCache:
    """The range and the codes of the last activation that was rounded, for the next layer.

    Layers that read the same tensor (the branches of a residual block; query, key and value) round
    it once. The cache holds weak references, so it keeps no large tensor alive. It serves only
    results of other operations: a data loader may overwrite a batch without the tensor knowing.
    Threads (replicas of a model) may share one.

    >>> cache, x = InputCache(), torch.ones(2, requires_grad=True) * 2
    >>> cache.keep_range(x, "sbm", (x[0], x[1]))
    >>> cache.range_of(x, "sbm") is not None, cache.range_of(x.clone(), "sbm") is not None
    (True, False)
    """

    def __init__(self) -> None:
        self._last: _CachedInput | None = None

    def _entry(self, x: Tensor) -> _CachedInput | None:
        last = self._last  # read once: another thread may replace it
        return last if last is not None and x.grad_fn is not None and last.is_of(x) else None

    def range_of(self, x: Tensor, quantizer: Any) -> Range | None:
        """The range of this tensor object, if this quantizer computed it last."""
        entry = self._entry(x)
        return None if entry is None else entry.ranges.get(quantizer)

    def keep_range(self, x: Tensor, quantizer: Any, within: Range) -> None:
        """Keep the range of a tensor; another tensor than the last replaces that."""
        if x.grad_fn is None:
            return
        entry = self._entry(x) or _CachedInput(x)
        entry.ranges[quantizer] = within
        self._last = entry

    def codes_of(self, x: Tensor, key: Any) -> Quantized | None:
        """The rounded tensor, if it was kept under this key and is still alive."""
        entry = self._entry(x)
        if entry is None or key not in entry.encoded:
            return None
        values, codes, scale, offset, half = entry.encoded[key]
        q = Quantized(scale, offset, _alive(values), _alive(codes), half)
        return None if q.values is None and q.codes is None else q

    def keep_codes(self, x: Tensor, key: Any, q: Quantized) -> None:
        """Keep the rounded tensor by weak references to its values and codes."""
        entry = self._entry(x)
        if entry is None:
            return
        values, codes = (None if t is None else weakref.ref(t) for t in (q.values, q.codes))
        entry.encoded[key] = values, codes, q.scale, q.offset, q.half

    def share(self, x: Tensor, key: Any, packed: Tensor) -> Tensor:
        """The packed codes that another layer saves of this tensor; otherwise `packed`, kept."""
        entry = self._entry(x)
        if entry is None:
            return packed
        other = _alive(entry.packed.get(key))
        if other is not None:
            return other
        entry.packed[key] = weakref.ref(packed)
        return packed

    def __reduce__(self) -> Any:
        return InputCache, ()  # the cache of a copied model starts empty


class _CachedInput:
    """What was computed of one tensor at one version of its contents."""

    def __init__(self, x: Tensor) -> None:
        self.reference, self.version, self.address = weakref.ref(x), x._version, x.data_ptr()
        self.ranges: dict[Any, Range] = {}
        self.encoded: dict[Any, tuple[Any, ...]] = {}  # values, codes, scale, offset, half
        self.packed: dict[Any, weakref.ref[Tensor]] = {}

    def is_of(self, x: Tensor) -> bool:
        is_same = self.reference() is x and x._version == self.version
        return is_same and x.data_ptr() == self.address


def _alive(reference: weakref.ref[Tensor] | None) -> Tensor | None:
    return None if reference is None else reference()


def can_use_input_cache() -> bool:
    """False while a graph is traced: there the compiler finds common work."""
    return not torch.compiler.is_compiling()
