"""Converted nn.LSTMCell, nn.GRUCell and nn.RNNCell: one time step of the sequence layers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from .layers import convert
from .recurrent_oracle import Bits, run_direction

MODES = {
    "LSTM": lambda: nn.LSTMCell(4, 6),
    "GRU": lambda: nn.GRUCell(4, 6),
    "RNN_TANH": lambda: nn.RNNCell(4, 6),
    "RNN_RELU": lambda: nn.RNNCell(4, 6, bias=False, nonlinearity="relu"),
}


def _cell(mode: str, precision: str | None = "w4a4e4") -> Any:
    torch.manual_seed(0)
    return convert(MODES[mode]().double(), precision)


def _tensors() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randn(3, n, generator=generator, dtype=torch.float64).requires_grad_()
        for n in (4, 6, 6)
    ]


def _states(mode: str, results: Any) -> list[Tensor]:
    return list(results) if mode == "LSTM" else [results]


@pytest.mark.parametrize("mode", MODES)
def test_states_and_gradients_equal_the_oracle(mode: str) -> None:
    cell, (x, h, c) = _cell(mode), _tensors()
    ours = _states(mode, cell(x, (h, c) if mode == "LSTM" else h))
    weights = {name: p for name, p in cell.named_parameters()}
    _, *theirs = run_direction(mode, x, [3], weights, h, c, Bits(4, 4, 4))
    theirs = theirs[: len(ours)]
    leaves = [x, h, *([c] if mode == "LSTM" else []), *cell.parameters()]
    for results in (ours, theirs):
        loss = sum((value * torch.linspace(-1, 2, 18).view(3, 6)).sum() for value in results)
        results += torch.autograd.grad(loss, leaves)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("mode", MODES)
def test_without_bits_it_is_the_float_cell_to_the_bit(mode: str) -> None:
    cell, (x, h, c) = _cell(mode, None), _tensors()
    torch.manual_seed(0)
    state = (h, c) if mode == "LSTM" else h
    expected = MODES[mode]().double()(x, state)
    assert all(map(torch.equal, _states(mode, cell(x, state)), _states(mode, expected)))


@pytest.mark.parametrize("mode", MODES)
def test_no_state_means_zeros_and_one_sample_needs_no_batch(mode: str) -> None:
    cell, (x, _, _) = _cell(mode), _tensors()
    twin, zeros = copy.deepcopy(cell), torch.zeros(1, 6, dtype=torch.float64)
    alone = _states(mode, cell(x[0]))
    batch = _states(mode, twin(x[:1], (zeros, zeros) if mode == "LSTM" else zeros))
    for one, other in zip(alone, batch, strict=True):
        assert one.shape == (6,)
        assert torch.equal(one, other[0])


@pytest.mark.parametrize(("x", "h", "message"), [
    (torch.zeros(2, 3, 4), None, "input must have 1 or 2 dimensions, got 3"),
    (torch.zeros(3, 5), None, "input has 5 features, expected 4"),
    (torch.zeros(3, 4), torch.zeros(2, 6), r"state has shape \(2, 6\), expected \(3, 6\)"),
])  # fmt: skip
def test_wrong_shapes_are_refused(x: Tensor, h: Tensor | None, message: str) -> None:
    with pytest.raises((ValueError, RuntimeError), match=message):
        _cell("GRU")(x.double(), h if h is None else h.double())
