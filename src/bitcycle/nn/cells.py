"""nn.LSTMCell, nn.GRUCell and nn.RNNCell on grids: one time step of one layer.

Called once per time step by somebody else's loop, so each call is observed by itself and the
weights are put on their grid every time; nn.LSTM and its kin do that once per sequence.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bitcycle.nn.gates import Gates, GRUGates, LSTMGates, RNNGates
from bitcycle.nn.recurrence import Steps
from bitcycle.nn.recurrent import RecurrentLayer
from bitcycle.nn.swap import LAYERS


class _RecurrentCell(RecurrentLayer, nn.RNNCellBase):
    num_act_inputs = 2  # x and h
    weight_ih: Tensor
    weight_hh: Tensor

    @property
    def _gates(self) -> Gates:
        raise NotImplementedError

    def forward(self, input: Tensor, hx: Any = None) -> Any:
        """As the float cell; without bits exactly it."""
        if not self.is_active:
            return super().forward(input, hx)
        return self._forward_on_grids(input, hx)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _forward_on_grids(self, input: Tensor, hx: Any) -> Any:
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
        steps = Steps((len(x),))
        result = self.run_steps(self._gates, steps, x, weights, h, c, self._tick())
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
