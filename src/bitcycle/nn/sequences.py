"""nn.LSTM, nn.GRU and nn.RNN on grids: several layers, one or two directions, any form of input."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bitcycle.nn.dropout import drop
from bitcycle.nn.gates import Gates, GRUGates, LSTMGates, RNNGates
from bitcycle.nn.recurrence import Steps
from bitcycle.nn.recurrent import RecurrentLayer
from bitcycle.nn.swap import LAYERS

States = tuple[Tensor, Tensor | None]  # h and, of an LSTM, c: (layers * directions, N, size)


class _RecurrentStack(RecurrentLayer, nn.RNNBase):
    """Takes apart what torch's recurrent layers accept and runs layer after layer.

    Batches (batch_first or not), single sequences and packed sequences, with dropout between the
    layers. A graph that torch.compile makes breaks here: the time steps run uncompiled.
    """

    @property
    def num_act_inputs(self) -> int:  # type: ignore[override]
        """A running range for x and h, and for what a projection takes, per layer and direction."""
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
        """As the float layer; without bits exactly it."""
        if not self.is_active:
            return super().forward(input, hx)
        return self._forward_on_grids(input, hx)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _forward_on_grids(self, input: Tensor | PackedSequence, hx: Any) -> Any:
        if isinstance(input, PackedSequence):
            h, c = self._first_states(input.data, int(input.batch_sizes[0]), hx)
            if hx is not None and input.sorted_indices is not None:
                h, c = h[:, input.sorted_indices], None if c is None else c[:, input.sorted_indices]
            self._check(input.data, h, c, input.batch_sizes)
            steps = Steps(tuple(input.batch_sizes.tolist()))
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
        output, h, c = self._run_layers(x.flatten(0, 1), Steps((num,) * length), h, c)
        output = output.view(length, num, output.shape[1])
        output = output.transpose(0, 1) if self.batch_first else output
        if is_batched:
            return output, self._states(h, c)
        return output.squeeze(batch_dim), _map(self._states(h, c), lambda state: state.squeeze(1))

    def _run_layers(
        self, x: Tensor, steps: Steps, h: Tensor, c: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        control = self._tick()
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
                x = drop(x, self.dropout)
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
