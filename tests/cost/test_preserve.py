"""Counting leaves no trace in the model, the random states or the hooks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bitcycle as bc
from bitcycle.cost import count_macs
from bitcycle.cost.preserve import preserved
from tests import toys


class Restless(nn.Module):
    """Draws random numbers and writes buffers whatever the mode."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("last", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.last = x.mean(0)
        return F.dropout(self.fc(x), 0.5, training=True)


def test_random_states_and_buffers_are_as_before() -> None:
    model = Restless()
    last, state = model.last, torch.get_rng_state()
    count_macs(model, torch.ones(3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    assert model.calls == 0
    assert model.last is last


def test_a_quantized_model_keeps_bits_modes_ranges_and_noise() -> None:
    model = bc.quantize_model(toys.net())
    bits = bc.PrecisionScheduler(model, forward=4, backward=8, total_steps=9)
    model(toys.randn(2, 2, 6, 6)).sum().backward()
    bits.step()
    model.norm.eval()
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    gradients = {name: p.grad for name, p in model.named_parameters()}
    count_macs(model, toys.randn(2, 2, 6, 6))
    assert str(bc.get_precision(model)) == "w4a4e8g8"
    assert model.training
    assert not model.norm.training
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in model.named_buffers())
    assert all(p.grad is gradients[name] for name, p in model.named_parameters())


def test_no_hook_stays_behind_even_when_the_model_fails() -> None:
    assert not nn.modules.module._has_any_global_hook()
    model = bc.quantize_model(nn.Linear(4, 2)).train()
    with pytest.raises(RuntimeError, match="shape"):
        count_macs(model, torch.ones(3, 5))
    count_macs(model, torch.ones(3, 4))
    assert not nn.modules.module._has_any_global_hook()
    assert not model._forward_hooks
    assert model.training


def test_gradients_are_on_inside_and_as_before_outside() -> None:
    with torch.no_grad():
        with preserved(nn.Linear(1, 1)):
            assert torch.is_grad_enabled()
        assert not torch.is_grad_enabled()
