"""Quantized nn.LSTM, nn.GRU and nn.RNN, and their cells.

    from_x = x^ W_ih^ + b_ih      all time steps in one product, one range for x, one for its error
    from_h = h^ W_hh^ + b_hh      one product per step, each with the ranges of that time step
    h, c = gates(from_x, from_h)  float32

Weights have one range per row and are rounded once per call. Evaluation uses running ranges: per
layer and direction one for x, one for h over all time steps, and one for the input of a projection
(proj_size). For a quantizer with ranges per sample, a sample is one sequence at one time step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bitcycle.kernels.choice import Recurrence
from bitcycle.kernels.geometry import LinearGeometry
from bitcycle.nn.activations import masked_dropout
from bitcycle.nn.class_swap import LAYERS
from bitcycle.nn.control import LEVELS, control_for_product, is_recomputing
from bitcycle.nn.layer import QuantizedLayer, is_autocast
from bitcycle.nn.plan import LayerPlan
from bitcycle.nn.product import quantized_product
from bitcycle.nn.recurrent_product import (
    Gates,
    GRUGates,
    LSTMGates,
    RecurrenceOutput,
    RecurrenceSpec,
    RNNGates,
    TimeSteps,
    run_recurrence,
)
from bitcycle.nn.rounding import widen
from bitcycle.quantizers.base import Range

_GEOMETRY = LinearGeometry()
UNCAST = (nn.GRU, nn.GRUCell, nn.LSTMCell)  # to which autocast on a CPU does nothing


class RecurrentLayer(QuantizedLayer):
    """Mixed in before a float recurrent layer or cell."""

    def run_steps(
        self,
        gates: Gates,
        steps: TimeSteps,
        x: Tensor,
        weights: tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None],
        h: Tensor,
        c: Tensor | None,
        control: Tensor,
        first_row: int = 0,
    ) -> RecurrenceOutput:
        """One layer in one direction: x (rows, in) -> (rows, out) and the last states.

        weights: weight_ih, weight_hh, bias_ih, bias_hh, weight_hr. first_row: the first of its rows
        in `act_range`, which also numbers its products for the noise.
        """
        w_ih, w_hh, *biases = weights
        w_ih, w_hh = widen(w_ih), widen(w_hh)
        b_ih, b_hh, w_hr = (w if w is None else widen(w) for w in biases)
        x, h, c = widen(x), widen(h), c if c is None else widen(c)
        plan, quantizer = self._step_plan(x, w_ih, w_hh, steps), self.settings.quantizer
        if "act" in self.grid_roles:
            x = quantizer.prepare("act", x, control[LEVELS["act"]])
        if "weight" in self.grid_roles:
            levels = control[LEVELS["weight"]]
            w_ih, w_hh = (quantizer.prepare("weight", w, levels) for w in (w_ih, w_hh))
            w_hr = w_hr if w_hr is None else quantizer.prepare("weight", w_hr, levels)
        x_range = self.activation_range(x, first_row)
        from_x = quantized_product(
            plan, x, w_ih, b_ih, control_for_product(control, first_row), self.health, x_range,
            None, self.recorder, dtype=x.dtype,
        )  # fmt: skip
        h_row, p_row = first_row + 1, first_row + 2
        h_range, has_step_ranges = self._running_range(h_row)
        p_range = self._running_range(p_row)[0] if w_hr is not None else None
        numbers = h_row, p_row
        recurrence = RecurrenceSpec(plan, gates, steps, numbers, has_step_ranges, self.recorder)
        result = run_recurrence(
            recurrence, from_x, w_hh, b_hh, w_hr, h, c, control, self.health, h_range, p_range
        )
        self._observe_steps(h_row, result.h_extremes)
        self._observe_steps(p_row, result.p_extremes)
        return result

    def result_dtype(self, x: Tensor) -> torch.dtype:
        """What the float layer returns: the input's dtype, or autocast's where it casts."""
        device = x.device.type
        if not is_autocast(x) or (device == "cpu" and isinstance(self, UNCAST)):
            return x.dtype
        return torch.get_autocast_dtype(device)

    def _step_plan(self, x: Tensor, w_ih: Tensor, w_hh: Tensor, steps: TimeSteps) -> LayerPlan:
        num_out, num_in = w_hh.shape
        recurrence = Recurrence(max(steps.counts), len(steps.counts), (num_out, num_in))
        return self.plan(_GEOMETRY, x, w_ih, recurrence=recurrence)

    def _running_range(self, row: int) -> tuple[Range | None, bool]:
        """The running range for all time steps, or None and whether each step has its own."""
        if "act" not in self.grid_roles and not self.shared.is_calibrating:
            return None, False
        is_fixed = not self.settings.quantizer.observes
        if self.must_observe or is_fixed or not self.is_observed:
            return None, True
        _, low, spread = self.act_range[row].clone().unbind(0)
        return (low, low + spread), False

    def _observe_steps(self, row: int, extremes: Tensor | None) -> None:
        """Move a running range, once per call, towards the extremes over all time steps."""
        if extremes is not None and self.must_observe and not is_recomputing():
            self.observe(row, extremes[0], extremes[1])

    def __reduce_ex__(self, protocol: Any) -> Any:
        rebuild, args, state = super().__reduce_ex__(protocol)
        state.pop("_flat_weight_refs", None)  # weak references; made again by __setstate__
        return rebuild, args, state


def _to(result: Any, dtype: torch.dtype) -> Any:
    """An output and states in this dtype."""
    if isinstance(result, Tensor):
        return result.to(dtype)
    if isinstance(result, PackedSequence):
        return result._replace(data=result.data.to(dtype))
    return tuple(_to(part, dtype) for part in result)


States = tuple[Tensor, Tensor | None]  # h and, of an LSTM, c: (layers * directions, N, size)


class _RecurrentStack(RecurrentLayer, nn.RNNBase):
    """nn.LSTM, nn.GRU and nn.RNN: all layers and directions, with dropout between layers.

    Takes batches (batch_first or not), single sequences and packed sequences. torch.compile breaks
    its graph here: the time steps run uncompiled.
    """

    @property
    def num_act_inputs(self) -> int:  # type: ignore[override]
        """Running ranges for x, h and the input of a projection, per layer and direction."""
        return self.num_layers * self._num_directions * self._num_ranges

    @property
    def _num_directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def _num_ranges(self) -> int:
        return 3 if self.proj_size else 2

    @property
    def _gates(self) -> Gates:
        if self.mode in ("LSTM", "GRU"):
            return LSTMGates() if self.mode == "LSTM" else GRUGates()
        return RNNGates("tanh" if self.mode == "RNN_TANH" else "relu")

    def forward(self, input: Any, hx: Any = None) -> Any:
        """The float layer's arguments and results; without bits exactly the float layer."""
        data = input.data if isinstance(input, PackedSequence) else input
        states = (hx,) if hx is None or isinstance(hx, Tensor) else hx
        if not self.quantizes(data, *states, self._weights(0, 0)[0]):
            return super().forward(input, hx)
        return _to(self._quantized_forward(input, hx), self.result_dtype(data))

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _quantized_forward(self, input: Tensor | PackedSequence, hx: Any) -> Any:
        if isinstance(input, PackedSequence):
            h, c = self._first_states(input.data, int(input.batch_sizes[0]), hx)
            if hx is not None and input.sorted_indices is not None:
                h, c = h[:, input.sorted_indices], None if c is None else c[:, input.sorted_indices]
            self._check(input.data, h, c, input.batch_sizes)
            steps = TimeSteps(tuple(input.batch_sizes.tolist()))
            output, h, c = self._run_layers(input.data, steps, h, c)
            if input.unsorted_indices is not None:
                back = input.unsorted_indices
                h, c = h[:, back], None if c is None else c[:, back]
            return input._replace(data=output), self._states(h, c)
        if input.dim() not in (2, 3):
            kind = type(self).__name__
            raise ValueError(f"{kind} takes a 2-D or 3-D input, got {input.dim()} dimensions")
        is_batched = input.dim() == 3
        batch_dim = 0 if self.batch_first else 1
        if not is_batched:
            input = input.unsqueeze(batch_dim)
            hx = _map(hx, lambda state: state.unsqueeze(1))
        h, c = self._first_states(input, input.shape[batch_dim], hx)
        self._check(input, h, c, None)
        x = input.transpose(0, 1) if self.batch_first else input  # (T, N, in)
        length, num, _ = x.shape
        if length == 0:
            raise ValueError(f"the input has shape {tuple(input.shape)}: no time step to compute")
        output, h, c = self._run_layers(x.flatten(0, 1), TimeSteps((num,) * length), h, c)
        output = output.view(length, num, output.shape[1])
        output = output.transpose(0, 1) if self.batch_first else output
        if is_batched:
            return output, self._states(h, c)
        return output.squeeze(batch_dim), _map(self._states(h, c), lambda state: state.squeeze(1))

    def _run_layers(
        self, x: Tensor, steps: TimeSteps, h: Tensor, c: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        control = self.next_control()
        last_h, last_c = [], []
        for layer in range(self.num_layers):
            outputs = []
            for direction in range(self._num_directions):
                index = layer * self._num_directions + direction
                result = self.run_steps(
                    self._gates,
                    replace(steps, is_reversed=bool(direction)),
                    x,
                    self._weights(layer, direction),
                    h[index],
                    None if c is None else c[index],
                    control,
                    index * self._num_ranges,
                )
                outputs.append(result.output)
                last_h.append(result.h)
                last_c.append(result.c)
            x = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)
            if self.dropout and self.training and layer < self.num_layers - 1:
                x = masked_dropout(x, self.dropout)
        cells = [state for state in last_c if state is not None]
        return x, torch.stack(last_h), torch.stack(cells) if cells else None

    def _weights(self, layer: int, direction: int) -> Any:
        ending = f"l{layer}" + ("_reverse" if direction else "")
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
        return tuple(getattr(self, f"{name}_{ending}", None) for name in names)

    def _first_states(self, x: Tensor, num: int, hx: Any) -> States:
        if hx is not None:
            return hx if self.mode == "LSTM" else (hx, None)
        count = self.num_layers * self._num_directions
        h = x.new_zeros(count, num, self.proj_size or self.hidden_size)
        return h, x.new_zeros(count, num, self.hidden_size) if self.mode == "LSTM" else None

    def _check(self, x: Tensor, h: Tensor, c: Tensor | None, batch_sizes: Tensor | None) -> None:
        """The float layer's own checks of shapes and dtypes."""
        self.check_forward_args(x, self._states(h, c), batch_sizes)

    def _states(self, h: Tensor, c: Tensor | None) -> Any:
        return h if self.mode != "LSTM" else (h, c)


def _map(states: Any, function: Any) -> Any:
    if states is None:
        return None
    return tuple(map(function, states)) if isinstance(states, tuple) else function(states)


@LAYERS.register("torch.nn.modules.rnn.LSTM")
class QuantizedLSTM(_RecurrentStack, nn.LSTM):
    """A converted nn.LSTM; gates and cell state stay float32."""


@LAYERS.register("torch.nn.modules.rnn.GRU")
class QuantizedGRU(_RecurrentStack, nn.GRU):
    """A converted nn.GRU; gates stay float32."""


@LAYERS.register("torch.nn.modules.rnn.RNN")
class QuantizedRNN(_RecurrentStack, nn.RNN):
    """A converted nn.RNN; its non-linearity stays float32."""


class _RecurrentCell(RecurrentLayer, nn.RNNCellBase):
    """nn.LSTMCell, nn.GRUCell and nn.RNNCell: one time step."""

    num_act_inputs = 2  # x and h
    weight_ih: Tensor
    weight_hh: Tensor

    @property
    def _gates(self) -> Gates:
        raise NotImplementedError

    def forward(self, input: Tensor, hx: Any = None) -> Any:
        """The float cell's arguments and results; without bits exactly the float cell."""
        h = hx if hx is None or isinstance(hx, Tensor) else hx[0]  # a cell state is not multiplied
        if not self.quantizes(input, h, self.weight_ih):
            return super().forward(input, hx)
        return _to(self._quantized_forward(input, hx), self.result_dtype(input))

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _quantized_forward(self, input: Tensor, hx: Any) -> Any:
        is_lstm = isinstance(self, nn.LSTMCell)
        states = () if hx is None else hx if is_lstm else (hx,)
        for name, tensor in (("input", input), *((f"state {i}", s) for i, s in enumerate(states))):
            if tensor.dim() not in (1, 2):
                raise ValueError(f"{name} must have 1 or 2 dimensions, got {tensor.dim()}")
        is_batched = input.dim() == 2
        x = input if is_batched else input.unsqueeze(0)
        if hx is None:
            zeros = x.new_zeros(len(x), self.hidden_size)
            states = (zeros, zeros) if is_lstm else (zeros,)
        elif not is_batched:
            states = tuple(state.unsqueeze(0) for state in states)
        self._check(x, states)
        weights = (self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh, None)
        h, c = (*states, None)[:2]
        steps = TimeSteps((len(x),))
        result = self.run_steps(self._gates, steps, x, weights, h, c, self.next_control())
        new = [
            state if is_batched else state.squeeze(0)
            for state in (result.h, result.c)
            if state is not None
        ]
        return tuple(new) if is_lstm else new[0]

    def _check(self, x: Tensor, states: tuple[Tensor, ...]) -> None:
        if x.shape[1] != self.input_size:
            raise RuntimeError(f"input has {x.shape[1]} features, expected {self.input_size}")
        for state in states:
            if state.shape != (len(x), self.hidden_size):
                raise RuntimeError(
                    f"a state has shape {tuple(state.shape)}, expected {(len(x), self.hidden_size)}"
                )


@LAYERS.register("torch.nn.modules.rnn.LSTMCell")
class QuantizedLSTMCell(_RecurrentCell, nn.LSTMCell):
    """A converted nn.LSTMCell; gates and cell state stay float32."""

    _gates = LSTMGates()


@LAYERS.register("torch.nn.modules.rnn.GRUCell")
class QuantizedGRUCell(_RecurrentCell, nn.GRUCell):
    """A converted nn.GRUCell; gates stay float32."""

    _gates = GRUGates()


@LAYERS.register("torch.nn.modules.rnn.RNNCell")
class QuantizedRNNCell(_RecurrentCell, nn.RNNCell):
    """A converted nn.RNNCell; its non-linearity stays float32."""

    @property
    def _gates(self) -> Gates:
        return RNNGates(self.nonlinearity)
