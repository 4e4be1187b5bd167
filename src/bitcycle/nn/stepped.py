"""One weight, multiplied once per time step: its grid is made once, inputs and errors per step.

The ranges of the input (the hidden state) and of its error are those of one time step. The weight
gradient is one product over all steps together.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bitcycle.kernels.held import hold_grad_input, hold_output
from bitcycle.nn.product import (
    CLOCK,
    LEVELS,
    STEP,
    Plan,
    _encode,
    _encode_error,
    _encode_for_input,
    _encode_second,
)
from bitcycle.nn.saved import NUM_TENSORS, Form, Tensors, restore, to_save
from bitcycle.ops.noise import noise_key
from bitcycle.quantizers.base import Quantized, Range

# Odd numbers that keep the noise of a layer's products, and of their time steps, apart.
_PART, _TIME = 0x5BD1E995, 0x1B873593


def part_of(control: Tensor, part: int) -> Tensor:
    """The control tensor for one of several products in a call, with noise of its own."""
    if part == 0:
        return control
    control = control.clone()
    control[CLOCK.start] += torch.tensor(part, dtype=torch.int32) * _PART
    return control


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
