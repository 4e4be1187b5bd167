"""One weight, multiplied once per time step: its grid is made once, inputs and errors per step.

The ranges of the input (the hidden state) and of its error are those of one time step. The weight
gradient is one product over all steps together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from bitcycle.kernels.prepacked import hold_grad_input, hold_output
from bitcycle.nn.product import (
    CLOCK,
    LEVELS,
    NUM_TENSORS,
    STEP,
    Form,
    Plan,
    Tensors,
    _encode,
    _encode_error,
    _encode_for_input,
    _encode_second,
    _no_autocast,
    differentiable_once,
    part_of,
    restore,
    to_save,
    watch,
)
from bitcycle.ops.noise import noise_key
from bitcycle.quantizers.base import Quantized, Range

_TIME = 0x1B873593  # odd: keeps the noise of time steps apart

Kept = tuple[Tensor, ...]
Slopes = tuple[Tensor, ...]  # their first dimension runs over the rows, as in Kept


class Gates(Protocol):
    """The arithmetic of one kind of cell; `size` below is the number of hidden units."""

    count: ClassVar[int]  # gates: the products have count * size columns
    kept: ClassVar[tuple[int, ...]]  # widths, in sizes, of what the backward pass reads
    has_one_error: ClassVar[bool]  # the two products are only added, so their errors are equal

    def step(
        self, x: Tensor, h: Tensor, before: Tensor, c: Tensor | None, kept: Kept
    ) -> tuple[Tensor, Tensor | None]:
        """The next hidden and cell state; fills `kept`. `h` (the product) may be overwritten."""

    def slopes(self, kept: Kept) -> Slopes:
        """The factors of `back`, for all rows."""

    def back(
        self, slopes: Slopes, dh: Tensor, dc: Tensor | None, dx: Tensor, dproduct: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        """Fill the errors of the two products; return what the earlier h and c get directly.

        `dx` and `dproduct` are one tensor where `has_one_error`.
        """


@dataclass(frozen=True)
class LSTMGates:
    """c' = f c + i g, h' = o tanh(c'); i, f, o = sigmoid(x + h), g = tanh(x + h)."""

    count: ClassVar[int] = 4
    kept: ClassVar[tuple[int, ...]] = (4, 1)  # i f g o; the cell state before
    has_one_error: ClassVar[bool] = True

    def step(
        self, x: Tensor, h: Tensor, before: Tensor, c: Tensor | None, kept: Kept
    ) -> tuple[Tensor, Tensor | None]:
        """One time step."""
        assert c is not None
        gates, c_before = kept
        size = c.shape[1]
        total = h.add_(x)
        torch.sigmoid(total[:, : 2 * size], out=gates[:, : 2 * size])
        torch.tanh(total[:, 2 * size : 3 * size], out=gates[:, 2 * size : 3 * size])
        torch.sigmoid(total[:, 3 * size :], out=gates[:, 3 * size :])
        i, f, g, o = gates.chunk(4, dim=1)
        c_before.copy_(c)
        c = torch.addcmul(f * c, i, g)
        return o * torch.tanh(c), c

    def slopes(self, kept: Kept) -> Slopes:
        """Of the four gates, of the cell state in h', and of the cell state before in c'."""
        gates, c_before = kept
        i, f, g, o = gates.chunk(4, dim=1)
        tanh_c = torch.addcmul(f * c_before, i, g).tanh_()
        gate_slopes = torch.empty_like(gates)
        to_i, to_f, to_g, to_o = gate_slopes.chunk(4, dim=1)
        torch.mul(i * (1 - i), g, out=to_i)
        torch.mul(f * (1 - f), c_before, out=to_f)
        torch.mul(1 - g * g, i, out=to_g)
        torch.mul(o * (1 - o), tanh_c, out=to_o)
        to_c = tanh_c.square_().neg_().add_(1).mul_(o)
        return gate_slopes, to_c, f

    def back(
        self, slopes: Slopes, dh: Tensor, dc: Tensor | None, dx: Tensor, dproduct: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        """One time step backwards."""
        assert dc is not None
        gate_slopes, to_c, f = slopes
        size = dh.shape[1]
        dc = torch.addcmul(dc, dh, to_c)
        through_cell = gate_slopes[:, : 3 * size].view(-1, 3, size)
        torch.mul(dc.unsqueeze(1), through_cell, out=dx[:, : 3 * size].view(-1, 3, size))
        torch.mul(dh, gate_slopes[:, 3 * size :], out=dx[:, 3 * size :])
        return None, dc * f


@dataclass(frozen=True)
class GRUGates:
    """h' = (1 - z) n + z h; r, z = sigmoid(x + h), n = tanh(x + r h) of the products x and h."""

    count: ClassVar[int] = 3
    kept: ClassVar[tuple[int, ...]] = (3, 1, 1)  # r z n; the product that r scales; h before
    has_one_error: ClassVar[bool] = False

    def step(
        self, x: Tensor, h: Tensor, before: Tensor, c: Tensor | None, kept: Kept
    ) -> tuple[Tensor, Tensor | None]:
        """One time step."""
        gates, scaled, h_before = kept
        size = before.shape[1]
        torch.add(x[:, : 2 * size], h[:, : 2 * size], out=gates[:, : 2 * size]).sigmoid_()
        r, z, n = gates.chunk(3, dim=1)
        scaled.copy_(h[:, 2 * size :])
        torch.addcmul(x[:, 2 * size :], r, scaled, out=n).tanh_()
        h_before.copy_(before)
        return torch.lerp(n, before, z), None

    def slopes(self, kept: Kept) -> Slopes:
        """Of the three gates, then r (which scales the product of h) and z (which keeps h)."""
        gates, scaled, h_before = kept
        r, z, n = gates.chunk(3, dim=1)
        gate_slopes = torch.empty_like(gates)
        to_r, to_z, to_n = gate_slopes.chunk(3, dim=1)
        torch.mul(1 - z, 1 - n * n, out=to_n)
        torch.mul(z * (1 - z), h_before - n, out=to_z)
        torch.mul(to_n * scaled, r * (1 - r), out=to_r)
        return gate_slopes, r, z

    def back(
        self, slopes: Slopes, dh: Tensor, dc: Tensor | None, dx: Tensor, dproduct: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        """One time step backwards."""
        gate_slopes, r, z = slopes
        size = dh.shape[1]
        by_gate = gate_slopes.view(-1, 3, size)
        torch.mul(dh.unsqueeze(1), by_gate, out=dx.view(-1, 3, size))
        dproduct.copy_(dx)
        dproduct[:, 2 * size :].mul_(r)
        return dh * z, None


@dataclass(frozen=True)
class RNNGates:
    """h' = tanh(x + h), or relu."""

    nonlinearity: str = "tanh"
    count: ClassVar[int] = 1
    kept: ClassVar[tuple[int, ...]] = (1,)  # h'
    has_one_error: ClassVar[bool] = True

    def step(
        self, x: Tensor, h: Tensor, before: Tensor, c: Tensor | None, kept: Kept
    ) -> tuple[Tensor, Tensor | None]:
        """One time step."""
        total = h.add_(x)
        after = total.tanh_() if self.nonlinearity == "tanh" else total.relu_()
        kept[0].copy_(after)
        return after, None

    def slopes(self, kept: Kept) -> Slopes:
        """1 - h'^2, or 1 where h' > 0."""
        (after,) = kept
        return (1 - after * after if self.nonlinearity == "tanh" else (after > 0).to(after.dtype),)

    def back(
        self, slopes: Slopes, dh: Tensor, dc: Tensor | None, dx: Tensor, dproduct: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        """One time step backwards."""
        torch.mul(dh, slopes[0], out=dx)
        return None, None


class SteppedOutput:
    """The forward products; afterwards `saved` holds what the backward ones need."""

    def __init__(
        self,
        plan: Plan,
        w: Tensor,
        bias: Tensor | None,
        control: Tensor,
        health: Tensor,
        within: Range | None,
        *,
        keeps: bool,
        takes_ranges: bool,
    ) -> None:
        self._plan, self._control, self._within = plan, control, within
        self._keeps, self._takes_ranges = keeps, takes_ranges
        self._dtype = w.dtype
        self._weight = _encode_second(plan, w, control, health, None)
        self._for_input = _encode_for_input(plan, w, control, self._weight) if keeps else None
        self._times = hold_output(plan.kernel, self._weight, bias)
        self._inputs: list[Quantized] = []
        self._raw: list[Tensor] = []
        self._ranges: list[Range] = []

    def __call__(self, x: Tensor) -> Tensor:
        """x w^T + bias, for the next time step; x (rows, in)."""
        plan = self._plan
        levels = self._control[LEVELS["act"]]
        prepared = plan.quantizer.prepare("act", x, levels) if "act" in plan.roles else x
        within = self._within
        if within is None and self._takes_ranges:
            within = plan.quantizer.range_of("act", prepared)
            if x.shape[0] > 0:
                self._ranges.append(within)
        q = _encode(plan, "act", prepared, self._control, within, torch.uint8)
        if self._keeps:
            self._inputs.append(q)
            if prepared is not x:
                self._raw.append(x)
        return self._times(q).to(self._dtype)

    def extremes(self) -> Tensor | None:
        """The range over all steps, as [low, high]; None if a running range was used."""
        if not self._ranges:
            return None
        lows, highs = (torch.stack(ends) for ends in zip(*self._ranges, strict=True))
        return torch.stack([lows.min(), highs.max()])

    def saved(self) -> tuple[list[Tensor | None], tuple[Form, Form]]:
        """Inputs of all steps, the weight, and the inputs before `prepare` if that did anything."""
        assert self._for_input is not None
        inputs, input_form = to_save(_in_one(self._inputs, _counts(self._inputs)))
        weight, weight_form = to_save(self._for_input)
        raw = torch.cat(self._raw) if self._raw else None
        return [*inputs, *weight, raw], (input_form, weight_form)


NUM_SAVED = 2 * NUM_TENSORS + 1


class SteppedBackward:
    """The backward products, given what `SteppedOutput.saved` returned; last time step first."""

    def __init__(
        self,
        plan: Plan,
        saved: tuple[Tensor | None, ...],
        forms: tuple[Form, Form],
        control: Tensor,
        health: Tensor,
        num_steps: int,
    ) -> None:
        self._plan, self._control, self._health = plan, control, health
        inputs: Tensors = saved[:NUM_TENSORS]  # type: ignore[assignment]
        weight: Tensors = saved[NUM_TENSORS : 2 * NUM_TENSORS]  # type: ignore[assignment]
        self._inputs = restore(inputs, forms[0])
        self._times = hold_grad_input(plan.kernel, restore(weight, forms[1]))
        self._raw, self._rows_left = saved[-1], 0 if saved[-1] is None else saved[-1].shape[0]
        clocks = control.repeat(num_steps, 1)
        steps = torch.arange(num_steps, dtype=torch.int32, device=control.device)
        clocks[:, CLOCK.start] += steps * _TIME
        self._controls = list(clocks.unbind(0))
        self._errors: list[Quantized] = []

    def keep_error(self, e: Tensor) -> Quantized:
        """The error of the next earlier step on its grid, kept for `grad_weight`."""
        for_input, for_weight = _encode_error(self._plan, e, self._controls.pop(), self._health)
        self._errors.append(for_weight)
        return for_input

    def grad_input(self, e: Tensor) -> Tensor:
        """e w for the next earlier step; keeps the error."""
        grad = self._times(self.keep_error(e)).to(e.dtype)
        return grad if self._raw is None else self._through_prepare(grad)

    def _through_prepare(self, grad: Tensor) -> Tensor:
        assert self._raw is not None
        self._rows_left -= grad.shape[0]
        x = self._raw[self._rows_left : self._rows_left + grad.shape[0]].detach()
        with torch.enable_grad():
            levels = self._control[LEVELS["act"]]
            prepared = self._plan.quantizer.prepare("act", x.requires_grad_(), levels)
        return torch.autograd.grad(prepared, x, grad)[0]

    def grad_weight(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """Over all steps in one product, with a scale per row where codes are multiplied."""
        plan = self._plan
        errors = _in_one(self._errors[::-1], _counts(self._errors[::-1]))
        grad = plan.kernel.grad_weight(plan.geometry, errors, self._inputs, shape).to(dtype)
        if "grad" in plan.roles:
            levels, key = self._control[LEVELS["grad"]], noise_key(self._control[CLOCK])
            grad = plan.quantizer.encode_grad(grad, levels, key, self._control[STEP])
        return grad


def _counts(parts: list[Quantized]) -> list[int]:
    return [_data(part).shape[0] for part in parts]


def _data(q: Quantized) -> Tensor:
    data = q.values if q.values is not None else q.codes
    assert data is not None
    return data


def _in_one(parts: list[Quantized], counts: list[int]) -> Quantized:
    """The rows of all steps as one operand; codes get their step's scale and offset in each row."""
    if len(parts) == 1:
        return parts[0]
    data = torch.cat([_data(part) for part in parts])
    if parts[0].values is not None:
        return Quantized(values=data, top=parts[0].top)
    scale, offset = (
        torch.cat([getattr(part, name).expand(n, 1) for part, n in zip(parts, counts, strict=True)])
        for name in ("scale", "offset")
    )
    return replace(parts[0], codes=data, scale=scale, offset=offset)


@dataclass(frozen=True)
class Steps:
    """How many rows belong to each time step, and whether the last is computed first.

    Sequences are sorted by length, the longest first: a step has the first `count` of them.

    >>> steps = Steps((2, 2, 1), is_reversed=True)
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
class Job:
    """Everything about a recurrence that is not a tensor."""

    plan: Plan
    gates: Gates
    steps: Steps
    parts: tuple[int, int]  # numbers of the hidden state's product and of the projection's
    takes_ranges: bool  # of each time step; otherwise running ranges are given, or none is needed


@dataclass(frozen=True)
class Result:
    """Outputs of all rows, the last states, and the ranges of the hidden state and projection."""

    output: Tensor
    h: Tensor
    c: Tensor | None
    h_extremes: Tensor | None
    p_extremes: Tensor | None


def run_recurrence(
    job: Job,
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
) -> Result:
    """From the input's product x (rows, gates * size) and the first state, step by step.

    w (gates * size, out), bias: of the hidden state; projection (out, size): h = projection u of
    what the gates make, or None for h = u.
    """
    h_low, h_high = h_range if h_range is not None else (None, None)
    p_low, p_high = p_range if p_range is not None else (None, None)
    results = _Recurrence.apply(  # type: ignore[no-untyped-call]
        x, w, bias, projection, h, c, control, health, h_low, h_high, p_low, p_high, job
    )
    return Result(*results)


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
        job: Job,
    ) -> tuple[Tensor | None, ...]:
        keeps = any(ctx.needs_input_grad)
        flags = {"keeps": keeps, "takes_ranges": job.takes_ranges}
        h_range = (h_low, h_high) if h_low is not None and h_high is not None else None
        p_range = (p_low, p_high) if p_low is not None and p_high is not None else None
        size = w.shape[0] // job.gates.count
        kept = tuple(x.new_empty(len(x), width * size) for width in job.gates.kept) if keeps else ()
        outputs: list[Tensor] = []
        with _no_autocast(x):
            hidden = SteppedOutput(
                job.plan, w, bias, part_of(control, job.parts[0]), health, h_range, **flags
            )
            project = None
            if projection is not None:
                p_control = part_of(control, job.parts[1])
                project = SteppedOutput(
                    job.plan, projection, None, p_control, health, p_range, **flags
                )
            for from_x, *here in zip(*map(job.steps.split, (x, *kept)), strict=True):
                count = len(from_x)
                before, c_before = h[:count], c if c is None else c[:count]
                scratch = here or [x.new_empty(count, width * size) for width in job.gates.kept]
                new, new_c = job.gates.step(
                    from_x, hidden(before), before, c_before, tuple(scratch)
                )
                new = new if project is None else project(new)
                outputs.append(new)
                h, c = _put(h, new), c if c is None or new_c is None else _put(c, new_c)
            extremes = [
                None if product is None else product.extremes() for product in (hidden, project)
            ]
            for ends in extremes:
                if ends is not None:
                    watch(health, "act", (ends[0], ends[1]))
            if keeps:
                _save(ctx, kept, hidden, project)
        ctx.job, ctx.control, ctx.health = job, control, health  # control: see _Product
        ctx.has_cell, ctx.w_like = c is not None, (w.shape, w.dtype)
        ctx.p_like = None if projection is None else (projection.shape, projection.dtype)
        ctx.mark_non_differentiable(*(ends for ends in extremes if ends is not None))
        ctx.set_materialize_grads(False)
        return job.steps.join(outputs), h, c, *extremes

    @staticmethod
    @differentiable_once
    def backward(
        ctx: Any, d_output: Tensor | None, d_h: Tensor | None, d_c: Tensor | None, *_: Any
    ) -> tuple[Tensor | None, ...]:
        job: Job = ctx.job
        steps, gates = job.steps, job.gates
        saved = ctx.saved_tensors
        kept = saved[: len(gates.kept)]
        hidden, project = _restore(ctx, saved[len(gates.kept) :])
        new, num_states = kept[0], max(steps.counts)
        size = new.shape[1] // gates.kept[0]
        width = size if ctx.p_like is None else ctx.p_like[0][0]
        dh = new.new_zeros(num_states, width) if d_h is None else d_h
        dc: Tensor | None = None
        if ctx.has_cell:
            dc = new.new_zeros(num_states, size) if d_c is None else d_c
        if d_output is None:
            d_output = new.new_zeros(len(new), width)
        needs_x, needs_w, needs_bias, needs_p, needs_h, needs_c = ctx.needs_input_grad[:6]
        with _no_autocast(new):
            dx = new.new_empty(len(new), gates.count * size)
            dproduct = dx if gates.has_one_error else torch.empty_like(dx)
            parts = (d_output, dx, dproduct, *gates.slopes(kept))
            by_step = list(zip(*map(steps.split, parts), strict=True))
            while by_step:
                arriving, dx_here, dproduct_here, *slopes = by_step.pop()
                count = len(arriving)
                error = dh[:count] + arriving
                if project is not None:
                    error = project.grad_input(error)
                direct, dc_new = gates.back(
                    tuple(slopes), error, None if dc is None else dc[:count], dx_here, dproduct_here
                )
                if by_step or needs_h:
                    grad = hidden.grad_input(dproduct_here)
                else:  # nobody asks for the first state's
                    hidden.keep_error(dproduct_here)
                    grad = torch.zeros_like(dh[:count])
                dh = _put(dh, grad if direct is None else grad + direct)
                dc = dc if dc is None or dc_new is None else _put(dc, dc_new)
            grad_w = hidden.grad_weight(*ctx.w_like) if needs_w else None
            grad_p = project.grad_weight(*ctx.p_like) if needs_p and project is not None else None
            grad_bias = dproduct.sum(0) if needs_bias else None
        grads = (dx if needs_x else None, grad_w, grad_bias, grad_p, dh if needs_h else None)
        return *grads, dc if needs_c else None, *(None,) * 7


def _put(state: Tensor, first: Tensor) -> Tensor:
    """The state with its first rows replaced: all of them, unless sequences differ in length."""
    return first if len(first) == len(state) else torch.cat([first, state[len(first) :]])


def _save(
    ctx: Any, kept: tuple[Tensor, ...], hidden: SteppedOutput, project: SteppedOutput | None
) -> None:
    tensors, ctx.forms = hidden.saved()
    if project is not None:
        more, ctx.p_forms = project.saved()
        tensors += more
    ctx.save_for_backward(*kept, *tensors)


def _restore(
    ctx: Any, saved: tuple[Tensor | None, ...]
) -> tuple[SteppedBackward, SteppedBackward | None]:
    job: Job = ctx.job
    num_steps = len(job.steps.counts)

    def make(tensors: tuple[Tensor | None, ...], forms: Any, part: int) -> SteppedBackward:
        control = part_of(ctx.control, part)
        return SteppedBackward(job.plan, tensors, forms, control, ctx.health, num_steps)

    hidden = make(saved[:NUM_SAVED], ctx.forms, job.parts[0])
    if ctx.p_like is None:
        return hidden, None
    return hidden, make(saved[NUM_SAVED:], ctx.p_forms, job.parts[1])
