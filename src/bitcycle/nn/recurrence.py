"""All time steps of one layer in one direction, as one function with its backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bitcycle.nn.gates import Gates
from bitcycle.nn.once import differentiable_once
from bitcycle.nn.product import Plan, _no_autocast, watch
from bitcycle.nn.stepped import NUM_SAVED, SteppedBackward, SteppedOutput, part_of
from bitcycle.quantizers.base import Range


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
