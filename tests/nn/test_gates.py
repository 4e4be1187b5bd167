"""The gates' hand-written slopes against autograd."""

from __future__ import annotations

import pytest
import torch

from bitcycle.nn.gates import Gates, GRUGates, LSTMGates, RNNGates

from .recurrent_oracle import next_state

KINDS: dict[str, Gates] = {
    "LSTM": LSTMGates(), "GRU": GRUGates(), "RNN_TANH": RNNGates("tanh"),
    "RNN_RELU": RNNGates("relu"),
}  # fmt: skip


@pytest.mark.parametrize("mode", KINDS)
def test_a_step_and_its_backward_equal_autograd(mode: str) -> None:
    gates, size, rows = KINDS[mode], 5, 3
    torch.manual_seed(0)
    x, p = (torch.randn(rows, gates.count * size, dtype=torch.float64) for _ in range(2))
    h, c, dh, dc = (torch.randn(rows, size, dtype=torch.float64) for _ in range(4))
    leaves = [v.clone().requires_grad_() for v in (x, p, h, c)]
    new_h, new_c = next_state(mode, *leaves)
    loss = (new_h * dh).sum() + ((new_c * dc).sum() if mode == "LSTM" else 0)
    to_x, to_p, to_h, to_c = torch.autograd.grad(loss, leaves, allow_unused=True)

    kept = tuple(torch.empty(rows, n * size, dtype=torch.float64) for n in gates.kept)
    is_lstm = mode == "LSTM"
    after, after_c = gates.step(x, p.clone(), h, c if is_lstm else None, kept)
    dx = torch.empty_like(x)
    dproduct = dx if gates.has_one_error else torch.empty_like(x)
    direct, cell = gates.back(gates.slopes(kept), dh, dc if is_lstm else None, dx, dproduct)
    torch.testing.assert_close(after, new_h.detach())
    torch.testing.assert_close(dx, to_x)
    torch.testing.assert_close(dproduct, to_p)
    if mode == "GRU":
        torch.testing.assert_close(direct, to_h)
    else:
        assert direct is None
        assert to_h is None
    if is_lstm:
        torch.testing.assert_close(after_c, new_c.detach())
        torch.testing.assert_close(cell, to_c)
