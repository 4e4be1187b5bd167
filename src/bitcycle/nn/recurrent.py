"""What converted recurrent layers and cells share: products of the input and of the hidden state.

    from_x = x^ W_ih^ + b_ih      all time steps in one product, one range for x, one for its error
    from_h = h^ W_hh^ + b_hh      one product per step, each with the ranges of that time step
    h, c = gates(from_x, from_h)  float32

Weights are put on their grid (a range per row) once per call. The running ranges, which
evaluation uses, are one for x and one for h (over all time steps) per layer and direction, and a
third for what a projection (proj_size) takes. To a rule that goes by samples, a sample is one
sequence at one time step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bitcycle.kernels.geometry import LinearGeometry
from bitcycle.kernels.measure import Recurrence
from bitcycle.kernels.mixed import UNDECIDED
from bitcycle.nn.base import QuantizedLayer
from bitcycle.nn.gates import Gates
from bitcycle.nn.product import LEVELS, Plan, quantized_product
from bitcycle.nn.ranges import is_recomputing
from bitcycle.nn.recurrence import Job, Result, Steps, run_recurrence
from bitcycle.nn.stepped import part_of
from bitcycle.quantizers.base import Range

_GEOMETRY = LinearGeometry()


class RecurrentLayer(QuantizedLayer):
    """Mixed in before a float recurrent layer or cell."""

    def run_steps(
        self,
        gates: Gates,
        steps: Steps,
        x: Tensor,
        weights: tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None],
        h: Tensor,
        c: Tensor | None,
        control: Tensor,
        first_row: int = 0,
    ) -> Result:
        """One layer in one direction: x (rows, in) -> (rows, out) and the last states.

        weights: weight_ih, weight_hh, bias_ih, bias_hh, weight_hr. first_row: of `act_range`, and
        the number of the first of these products in the noise.
        """
        w_ih, w_hh, b_ih, b_hh, w_hr = weights
        x, h = _in_one_dtype(x, w_ih), _in_one_dtype(h, w_hh)
        c = c if c is None else _in_one_dtype(c, w_hh)
        plan, quantizer = self._plan(x, w_ih, w_hh, steps), self.settings.quantizer
        if "act" in plan.roles:
            x = quantizer.prepare("act", x, control[LEVELS["act"]])
        if "weight" in plan.roles:
            levels = control[LEVELS["weight"]]
            w_ih, w_hh = (quantizer.prepare("weight", w, levels) for w in (w_ih, w_hh))
            w_hr = w_hr if w_hr is None else quantizer.prepare("weight", w_hr, levels)
        x_range = self._act_range(x, first_row)
        from_x = quantized_product(
            plan, x, w_ih, b_ih, part_of(control, first_row), self.health, x_range, None
        )
        h_row, p_row = first_row + 1, first_row + 2
        h_range, takes_ranges = self._running_range(h_row)
        p_range = self._running_range(p_row)[0] if w_hr is not None else None
        job = Job(plan, gates, steps, (h_row, p_row), takes_ranges)
        result = run_recurrence(
            job, from_x, w_hh, b_hh, w_hr, h, c, control, self.health, h_range, p_range
        )
        self._observe_steps(h_row, result.h_extremes)
        self._observe_steps(p_row, result.p_extremes)
        return result

    def _plan(self, x: Tensor, w_ih: Tensor, w_hh: Tensor, steps: Steps) -> Plan:
        if self.settings.kernel.name == UNDECIDED.name and self.training and x.numel():
            num_out, num_in = w_hh.shape
            recurrence = Recurrence(max(steps.counts), len(steps.counts), (num_out, num_in))
            self._decide_kernel(_GEOMETRY, x, w_ih, "weight", recurrence)
        return Plan(
            quantizer=self.rules,
            kernel=self.settings.kernel,
            geometry=_GEOMETRY,
            roles=self.quantized_roles,
            tops=self._tops(),
            second_keep=(0,),
            input_keep=(1,),
            recorder=self.recorder,
        )

    def _running_range(self, row: int) -> tuple[Range | None, bool]:
        """The range that evaluation gives all time steps, or None and whether each has its own."""
        if "act" not in self.quantized_roles and not self.shared.is_calibrating:
            return None, False
        is_fixed = not self.settings.quantizer.observes
        if self._must_observe or is_fixed or not self.is_observed:
            return None, True
        _, low, spread = self.act_range[row].clone().unbind(0)
        return (low, low + spread), False

    @property
    def _must_observe(self) -> bool:
        return (self.training or self.shared.is_calibrating) and self.settings.quantizer.observes

    def _observe_steps(self, row: int, extremes: Tensor | None) -> None:
        """Move a running range, once per call, towards the extremes over all time steps."""
        if extremes is not None and self._must_observe and not is_recomputing():
            self._observe(row, extremes[0], extremes[1])

    def __reduce_ex__(self, protocol: Any) -> Any:
        rebuild, args, state = super().__reduce_ex__(protocol)
        state.pop("_flat_weight_refs", None)  # weak references; made again by __setstate__
        return rebuild, args, state


def _in_one_dtype(x: Tensor, w: Tensor) -> Tensor:
    """Under autocast what arrives may be bfloat16; grids and gates are not."""
    return x.to(torch.promote_types(x.dtype, w.dtype))
