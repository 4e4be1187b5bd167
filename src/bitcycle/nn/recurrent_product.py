"""The recurrence of LSTM, GRU and RNN: the hidden state's product at every time step, and backward.

The weight is rounded once per call. The hidden state and its error are rounded at every time step,
each with the range of that step. The weight gradient is one product over all time steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from bitcycle.kernels.geometry import transposed
from bitcycle.nn.control import CLOCK, LEVELS, control_for_product
from bitcycle.nn.plan import LayerPlan
from bitcycle.nn.product import without_autocast
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
from bitcycle.nn.saved import (
    NUM_SAVED_TENSORS,
    SavedFormat,
    SavedTensors,
    restore_operand,
    save_operand,
)
from bitcycle.ops.state import flag_nonfinite
from bitcycle.quantizers.base import Quantized, Range

_TIME_NOISE = 0x1B873593  # odd: separates the noise of time steps


@dataclass(frozen=True)
class TimeSteps:
    """How many rows belong to each time step, and whether the last step is computed first.

    Sequences are sorted by length, the longest first: a step has the first `count` of them.

    >>> steps = TimeSteps((2, 2, 1), is_reversed=True)
    >>> steps.split(torch.arange(5))
    (tensor([4]), tensor([2, 3]), tensor([0, 1]))
    >>> steps.join(steps.split(torch.arange(5)))
    tensor([0, 1, 2, 3, 4])
    """

    counts: tuple[int, ...]
    is_reversed: bool = False

    def split(self, rows: Tensor) -> tuple[Tensor, ...]:
        """The rows of each step, in the order in which steps are computed."""
        parts: tuple[Tensor, ...] = rows.split(self.counts)  # type: ignore[no-untyped-call]
        return parts[::-1] if self.is_reversed else parts

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """The inverse of `split`."""
        in_order = list(parts)[::-1] if self.is_reversed else list(parts)
        return torch.cat(in_order)


@dataclass(frozen=True)
class RecurrenceSpec:
    """What a recurrence needs besides tensors."""

    plan: LayerPlan
    gates: Gates
    steps: TimeSteps
    product_numbers: tuple[int, int]  # of the hidden state's product and of the projection's
    has_step_ranges: bool  # each step takes its own range; else a running range, or none
    recorder: Recorder | None = None


@dataclass(frozen=True)
class RecurrenceOutput:
    """Outputs of all rows, the last states, and the ranges of the hidden state and projection."""

    output: Tensor
    h: Tensor
    c: Tensor | None
    h_extremes: Tensor | None
    p_extremes: Tensor | None


def run_recurrence(
    spec: RecurrenceSpec,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    projection: Tensor | None,
    h: Tensor,
    c: Tensor | None,
    control: Tensor,
    health: Tensor,
    h_range: Range | None,
    p_range: Range | None,
) -> RecurrenceOutput:
    """Run all time steps of one layer in one direction.

    x (rows, gates * size): the input's product. w (gates * size, out), bias: of the hidden state.
    projection (out, size): h = projection u of the cell's output u, or None for h = u. h, c: the
    first states.
    """
    h_low, h_high = h_range if h_range is not None else (None, None)
    p_low, p_high = p_range if p_range is not None else (None, None)
    results = _Recurrence.apply(  # type: ignore[no-untyped-call]
        x, w, bias, projection, h, c, control, health, h_low, h_high, p_low, p_high, spec
    )
    return RecurrenceOutput(*results)


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        w: Tensor,
        bias: Tensor | None,
        projection: Tensor | None,
        h: Tensor,
        c: Tensor | None,
        control: Tensor,
        health: Tensor,
        h_low: Tensor | None,
        h_high: Tensor | None,
        p_low: Tensor | None,
        p_high: Tensor | None,
        spec: RecurrenceSpec,
    ) -> tuple[Tensor | None, ...]:
        needs_grad = any(ctx.needs_input_grad)
        h_range = (h_low, h_high) if h_low is not None and h_high is not None else None
        p_range = (p_low, p_high) if p_low is not None and p_high is not None else None
        gates, steps, (h_number, p_number) = spec.gates, spec.steps, spec.product_numbers
        size = w.shape[0] // gates.count
        widths = [width * size for width in gates.saved_widths]
        saved = tuple(x.new_empty(len(x), width) for width in widths) if needs_grad else ()
        outputs: list[Tensor] = []
        with without_autocast(x):
            h_control = control_for_product(control, h_number)
            hidden = StepProducts(spec, w, bias, h_control, health, h_range, needs_grad)
            project = None
            if projection is not None:
                p_control = control_for_product(control, p_number)
                project = StepProducts(
                    spec, projection, None, p_control, health, p_range, needs_grad
                )
            for from_x, *rows in zip(*map(steps.split, (x, *saved)), strict=True):
                count = len(from_x)
                h_now, c_now = h[:count], c if c is None else c[:count]
                rows = rows or [x.new_empty(count, width) for width in widths]
                new, new_c = gates.step(from_x, hidden(h_now), h_now, c_now, tuple(rows))
                new = new if project is None else project(new)
                outputs.append(new)
                h = _replace_rows(h, new)
                c = c if c is None or new_c is None else _replace_rows(c, new_c)
            extremes = [
                None if products is None else products.extremes() for products in (hidden, project)
            ]
            for ends in extremes:
                if ends is not None:
                    flag_nonfinite(health, LEVELS["act"], ends[0], ends[1])
            if needs_grad:
                tensors, ctx.formats = hidden.saved()
                if project is not None:
                    p_tensors, ctx.p_formats = project.saved()
                    tensors += p_tensors
                ctx.save_for_backward(*saved, *tensors)
        ctx.spec, ctx.control, ctx.health = spec, control, health  # control: see nn.product
        ctx.has_cell, ctx.w_like = c is not None, (w.shape, w.dtype)
        ctx.p_like = None if projection is None else (projection.shape, projection.dtype)
        ctx.mark_non_differentiable(*(ends for ends in extremes if ends is not None))
        ctx.set_materialize_grads(False)
        return steps.join(outputs), h, c, *extremes

    @staticmethod
    @differentiable_once
    def backward(
        ctx: Any, d_output: Tensor | None, d_h: Tensor | None, d_c: Tensor | None, *_: Any
    ) -> tuple[Tensor | None, ...]:
        spec: RecurrenceSpec = ctx.spec
        steps, gates = spec.steps, spec.gates
        tensors = ctx.saved_tensors  # read once: gradient checkpointing unpacks them once
        num_saved = len(gates.saved_widths)
        saved, (hidden, project) = tensors[:num_saved], _restore_products(ctx, tensors[num_saved:])
        new, num_states = saved[0], max(steps.counts)
        size = new.shape[1] // gates.saved_widths[0]
        width = size if ctx.p_like is None else ctx.p_like[0][0]
        dh = new.new_zeros(num_states, width) if d_h is None else d_h
        dc: Tensor | None = None
        if ctx.has_cell:
            dc = new.new_zeros(num_states, size) if d_c is None else d_c
        if d_output is None:
            d_output = new.new_zeros(len(new), width)
        needs_x, needs_w, needs_bias, needs_p, needs_h, needs_c = ctx.needs_input_grad[:6]
        with without_autocast(new):
            dx = new.new_empty(len(new), gates.count * size)
            dproduct = dx if gates.has_one_error else torch.empty_like(dx)
            parts = (d_output, dx, dproduct, *gates.derivatives(saved))
            by_step = list(zip(*map(steps.split, parts), strict=True))
            while by_step:
                arriving, dx_now, dproduct_now, *derivatives = by_step.pop()
                count = len(arriving)
                error = dh[:count] + arriving
                if project is not None:
                    error = project.grad_input(error)
                dc_now = None if dc is None else dc[:count]
                direct, dc_new = gates.backward_step(
                    tuple(derivatives), error, dc_now, dx_now, dproduct_now
                )
                if by_step or needs_h:
                    grad = hidden.grad_input(dproduct_now)
                else:  # the first state needs no gradient
                    hidden.keep_error(dproduct_now)
                    grad = torch.zeros_like(dh[:count])
                dh = _replace_rows(dh, grad if direct is None else grad + direct)
                dc = dc if dc is None or dc_new is None else _replace_rows(dc, dc_new)
            grad_w = hidden.grad_weight(*ctx.w_like) if needs_w else None
            grad_p = project.grad_weight(*ctx.p_like) if needs_p and project is not None else None
            grad_bias = dproduct.sum(0) if needs_bias else None
        grads = (dx if needs_x else None, grad_w, grad_bias, grad_p, dh if needs_h else None)
        return *grads, dc if needs_c else None, *(None,) * 7


def _replace_rows(state: Tensor, first: Tensor) -> Tensor:
    """The state with its first rows replaced: all of them, unless sequences differ in length."""
    return first if len(first) == len(state) else torch.cat([first, state[len(first) :]])


def _restore_products(
    ctx: Any, tensors: SavedTensors
) -> tuple[StepProductsBackward, StepProductsBackward | None]:
    spec: RecurrenceSpec = ctx.spec
    num_steps = len(spec.steps.counts)

    def make(tensors: SavedTensors, formats: Any, number: int) -> StepProductsBackward:
        control = control_for_product(ctx.control, number)
        return StepProductsBackward(spec, tensors, formats, control, ctx.health, num_steps)

    h_number, p_number = spec.product_numbers
    hidden = make(tensors[:_NUM_SAVED], ctx.formats, h_number)
    if ctx.p_like is None:
        return hidden, None
    return hidden, make(tensors[_NUM_SAVED:], ctx.p_formats, p_number)


# -- the products of all time steps with one weight -----------------------------------------------


class StepProducts:
    """Multiplies the input of one time step after another by the same weight."""

    def __init__(
        self,
        spec: RecurrenceSpec,
        w: Tensor,
        bias: Tensor | None,
        control: Tensor,
        health: Tensor,
        within: Range | None,
        needs_grad: bool,
    ) -> None:
        self._plan, self._recorder = plan, recorder = spec.plan, spec.recorder
        self._control, self._within = control, within
        self._needs_grad, self._has_step_ranges = needs_grad, spec.has_step_ranges
        self._dtype = w.dtype
        weight = encode_second(plan, w, control, health, None, recorder)
        self._multiply = plan.kernel.prepack(weight, bias)
        self._for_grad_input: Quantized | None = None
        if needs_grad:
            kept = keep_second(plan, w, weight, control)
            self._for_grad_input = encode_for_grad_input(plan, kept, control)
        self._inputs: list[Quantized] = []
        self._unprepared: list[Tensor] = []  # inputs before `Quantizer.prepare`
        self._ranges: list[Range] = []

    def __call__(self, x: Tensor) -> Tensor:
        """x w^T + bias for the next time step; x (rows, in)."""
        plan, within = self._plan, self._within
        levels = self._control[LEVELS["act"]]
        has_grid = plan.output.first.kind not in (None, "float")
        prepared = plan.quantizer.prepare("act", x, levels) if has_grid else x
        if within is None and self._has_step_ranges:
            within = plan.quantizer.range_of("act", prepared)
            if x.shape[0] > 0:
                self._ranges.append(within)
        q = encode_input(plan, prepared, self._control, within, self._recorder)
        if self._needs_grad:
            self._inputs.append(keep_input(plan, prepared, q))
            if prepared is not x:
                self._unprepared.append(x)
        return self._multiply(q).to(self._dtype)

    def extremes(self) -> Tensor | None:
        """The range over all steps, as [low, high]; None if a running range was used."""
        if not self._ranges:
            return None
        lows, highs = (torch.stack(ends) for ends in zip(*self._ranges, strict=True))
        return torch.stack([lows.min(), highs.max()])

    def saved(self) -> tuple[list[Tensor | None], tuple[SavedFormat, SavedFormat]]:
        """What `StepProductsBackward` needs: the inputs of all steps, the weight, raw inputs."""
        assert self._for_grad_input is not None
        inputs, input_format = save_operand(_concatenate(self._inputs))
        weight, weight_format = save_operand(self._for_grad_input)
        unprepared = torch.cat(self._unprepared) if self._unprepared else None
        return [*inputs, *weight, unprepared], (input_format, weight_format)


_NUM_SAVED = 2 * NUM_SAVED_TENSORS + 1  # the tensors of `StepProducts.saved`


class StepProductsBackward:
    """The backward products of `StepProducts`, last time step first."""

    def __init__(
        self,
        spec: RecurrenceSpec,
        saved: SavedTensors,
        formats: tuple[SavedFormat, SavedFormat],
        control: Tensor,
        health: Tensor,
        num_steps: int,
    ) -> None:
        self._plan, self._recorder = spec.plan, spec.recorder
        self._control, self._health = control, health
        inputs, weight = saved[:NUM_SAVED_TENSORS], saved[NUM_SAVED_TENSORS:-1]
        self._inputs = restore_operand(inputs, formats[0])
        weight_operand = restore_operand(weight, formats[1])
        self._multiply = spec.plan.kernel.prepack(transposed(weight_operand))
        self._unprepared = saved[-1]
        self._rows_left = 0 if self._unprepared is None else self._unprepared.shape[0]
        clocks = control.repeat(num_steps, 1)
        steps = torch.arange(num_steps, dtype=torch.int32, device=control.device)
        clocks[:, CLOCK.start] += steps * _TIME_NOISE
        self._controls = list(clocks.unbind(0))
        self._errors: list[Quantized] = []

    def keep_error(self, e: Tensor) -> Quantized:
        """Round the error of the next earlier step and keep it for `grad_weight`."""
        for_input, for_weight = encode_error(
            self._plan, e, self._controls.pop(), self._health, self._recorder
        )
        self._errors.append(for_weight)
        return for_input

    def grad_input(self, e: Tensor) -> Tensor:
        """e w for the next earlier step; keeps the error."""
        grad = self._multiply(self.keep_error(e)).to(e.dtype)
        return grad if self._unprepared is None else self._through_prepare(grad)

    def _through_prepare(self, grad: Tensor) -> Tensor:
        assert self._unprepared is not None
        self._rows_left -= grad.shape[0]
        x = self._unprepared[self._rows_left : self._rows_left + grad.shape[0]].detach()
        with torch.enable_grad():
            levels = self._control[LEVELS["act"]]
            prepared = self._plan.quantizer.prepare("act", x.requires_grad_(), levels)
        return torch.autograd.grad(prepared, x, grad)[0]

    def grad_weight(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """Over all steps in one product, with a scale per row where codes are multiplied."""
        plan, errors = self._plan, _concatenate(self._errors[::-1])
        errors, inputs = encode_for_grad_weight(plan, errors, self._inputs, self._control)
        grad = plan.products.grad_weight(errors, inputs, shape, dtype)
        return encode_grad(plan, grad, self._control)


def _concatenate(parts: list[Quantized]) -> Quantized:
    """The rows of all steps as one operand; codes get their step's scale and offset in each row."""
    if len(parts) == 1:
        return parts[0]
    rows = [part.values if part.values is not None else part.codes for part in parts]
    data = torch.cat([row for row in rows if row is not None])
    if parts[0].values is not None:
        return Quantized(values=data, top=parts[0].top)
    counts = [len(row) for row in rows if row is not None]
    scale, offset = (
        torch.cat([getattr(part, name).expand(n, 1) for part, n in zip(parts, counts, strict=True)])
        for name in ("scale", "offset")
    )
    return replace(parts[0], codes=data, scale=scale, offset=offset)


# -- the arithmetic of the cells ------------------------------------------------------------------

GateTensors = tuple[Tensor, ...]  # their first dimension runs over rows


class Gates(Protocol):
    """One kind of cell; `size` below is the number of hidden units.

    from_x, from_h: the products of the input and of the hidden state, (rows, count * size).
    """

    count: ClassVar[int]  # gates: the products have count * size columns
    saved_widths: ClassVar[tuple[int, ...]]  # of what the backward pass reads, in sizes
    has_one_error: ClassVar[bool]  # the two products are only added, so their errors are equal

    def step(
        self, from_x: Tensor, from_h: Tensor, h: Tensor, c: Tensor | None, saved: GateTensors
    ) -> tuple[Tensor, Tensor | None]:
        """The next hidden and cell state; fills `saved`, may overwrite `from_h`."""

    def derivatives(self, saved: GateTensors) -> GateTensors:
        """The factors of `backward_step`, for all rows."""

    def backward_step(
        self, derivatives: GateTensors, dh: Tensor, dc: Tensor | None, dx: Tensor, dproduct: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        """Fill the errors of the two products; return the direct gradients of the earlier h and c.

        `dx` and `dproduct` are one tensor where `has_one_error`.
        """


@dataclass(frozen=True)
class LSTMGates:
    """c' = f c + i g, h' = o tanh(c'); i, f, o = sigmoid(from_x + from_h), g = tanh of it."""

    count: ClassVar[int] = 4
    saved_widths: ClassVar[tuple[int, ...]] = (4, 1)  # i f g o; c
    has_one_error: ClassVar[bool] = True

    def step(
        self, from_x: Tensor, from_h: Tensor, h: Tensor, c: Tensor | None, saved: GateTensors
    ) -> tuple[Tensor, Tensor | None]:
        """One time step."""
        assert c is not None
        gates, saved_c = saved
        size = c.shape[1]
        total = from_h.add_(from_x)
        torch.sigmoid(total[:, : 2 * size], out=gates[:, : 2 * size])
        torch.tanh(total[:, 2 * size : 3 * size], out=gates[:, 2 * size : 3 * size])
        torch.sigmoid(total[:, 3 * size :], out=gates[:, 3 * size :])
        i, f, g, o = gates.chunk(4, dim=1)
        saved_c.copy_(c)
        c = torch.addcmul(f * c, i, g)
        return o * torch.tanh(c), c

    def derivatives(self, saved: GateTensors) -> GateTensors:
        """By the four gates, of h' by c', and of c' by c."""
        gates, c = saved
        i, f, g, o = gates.chunk(4, dim=1)
        tanh_c = torch.addcmul(f * c, i, g).tanh_()
        by_gate = torch.empty_like(gates)
        by_i, by_f, by_g, by_o = by_gate.chunk(4, dim=1)
        torch.mul(i * (1 - i), g, out=by_i)
        torch.mul(f * (1 - f), c, out=by_f)
        torch.mul(1 - g * g, i, out=by_g)
        torch.mul(o * (1 - o), tanh_c, out=by_o)
        by_c = tanh_c.square_().neg_().add_(1).mul_(o)
        return by_gate, by_c, f

    def backward_step(
        self, derivatives: GateTensors, dh: Tensor, dc: Tensor | None, dx: Tensor, dproduct: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        """One time step backwards."""
        assert dc is not None
        by_gate, by_c, f = derivatives
        size = dh.shape[1]
        dc = torch.addcmul(dc, dh, by_c)
        through_cell = by_gate[:, : 3 * size].view(-1, 3, size)
        torch.mul(dc.unsqueeze(1), through_cell, out=dx[:, : 3 * size].view(-1, 3, size))
        torch.mul(dh, by_gate[:, 3 * size :], out=dx[:, 3 * size :])
        return None, dc * f


@dataclass(frozen=True)
class GRUGates:
    """h' = (1 - z) n + z h; r, z = sigmoid(from_x + from_h), n = tanh(from_x + r from_h)."""

    count: ClassVar[int] = 3
    saved_widths: ClassVar[tuple[int, ...]] = (3, 1, 1)  # r z n; the product that r scales; h
    has_one_error: ClassVar[bool] = False

    def step(
        self, from_x: Tensor, from_h: Tensor, h: Tensor, c: Tensor | None, saved: GateTensors
    ) -> tuple[Tensor, Tensor | None]:
        """One time step."""
        gates, scaled, saved_h = saved
        size = h.shape[1]
        torch.add(from_x[:, : 2 * size], from_h[:, : 2 * size], out=gates[:, : 2 * size]).sigmoid_()
        r, z, n = gates.chunk(3, dim=1)
        scaled.copy_(from_h[:, 2 * size :])
        torch.addcmul(from_x[:, 2 * size :], r, scaled, out=n).tanh_()
        saved_h.copy_(h)
        return torch.lerp(n, h, z), None

    def derivatives(self, saved: GateTensors) -> GateTensors:
        """By the three gates, then r (which scales the product of h) and z (which keeps h)."""
        gates, scaled, h = saved
        r, z, n = gates.chunk(3, dim=1)
        by_gate = torch.empty_like(gates)
        by_r, by_z, by_n = by_gate.chunk(3, dim=1)
        torch.mul(1 - z, 1 - n * n, out=by_n)
        torch.mul(z * (1 - z), h - n, out=by_z)
        torch.mul(by_n * scaled, r * (1 - r), out=by_r)
        return by_gate, r, z

    def backward_step(
        self, derivatives: GateTensors, dh: Tensor, dc: Tensor | None, dx: Tensor, dproduct: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        """One time step backwards."""
        by_gate, r, z = derivatives
        size = dh.shape[1]
        torch.mul(dh.unsqueeze(1), by_gate.view(-1, 3, size), out=dx.view(-1, 3, size))
        dproduct.copy_(dx)
        dproduct[:, 2 * size :].mul_(r)
        return dh * z, None


@dataclass(frozen=True)
class RNNGates:
    """h' = tanh(from_x + from_h), or relu."""

    nonlinearity: str = "tanh"
    count: ClassVar[int] = 1
    saved_widths: ClassVar[tuple[int, ...]] = (1,)  # h'
    has_one_error: ClassVar[bool] = True

    def step(
        self, from_x: Tensor, from_h: Tensor, h: Tensor, c: Tensor | None, saved: GateTensors
    ) -> tuple[Tensor, Tensor | None]:
        """One time step."""
        total = from_h.add_(from_x)
        new = total.tanh_() if self.nonlinearity == "tanh" else total.relu_()
        saved[0].copy_(new)
        return new, None

    def derivatives(self, saved: GateTensors) -> GateTensors:
        """1 - h'^2, or 1 where h' > 0."""
        (new,) = saved
        return (1 - new * new if self.nonlinearity == "tanh" else (new > 0).to(new.dtype),)

    def backward_step(
        self, derivatives: GateTensors, dh: Tensor, dc: Tensor | None, dx: Tensor, dproduct: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        """One time step backwards."""
        torch.mul(dh, derivatives[0], out=dx)
        return None, None
