"""Gradient checkpointing runs a forward twice and must not count it twice."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import bitcycle as bc


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6))
    bc.quantize_model(model)
    bc.set_precision(model, "w4a4e4")
    return model


def _grads(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def _state(model: nn.Module) -> list[Tensor]:
    return [buffer.clone() for buffer in model.buffers()]


@pytest.mark.parametrize("reentrant", [True, False])
def test_ranges_are_observed_once_and_gradients_are_those_without(reentrant: bool) -> None:
    plain = _model()
    checkpointed = copy.deepcopy(plain)
    x = torch.randn(5, 6, requires_grad=True)
    for factor in (1.0, 3.0):  # micro-batches: gradients add up, ranges run
        plain(factor * x).square().sum().backward()
        out = checkpoint(checkpointed, factor * x, use_reentrant=reentrant)
        out.square().sum().backward()
        assert all(map(torch.equal, _state(checkpointed), _state(plain)))
        assert all(map(torch.equal, _grads(checkpointed), _grads(plain)))
    assert len(_grads(plain)) == 4


def test_a_layer_used_twice_before_the_backward_keeps_the_noise_of_each_use() -> None:
    plain = _model()
    checkpointed = copy.deepcopy(plain)
    x = torch.randn(5, 6, requires_grad=True)
    plain(plain(x)).square().sum().backward()
    inner = checkpoint(checkpointed, x, use_reentrant=False)
    checkpoint(checkpointed, inner, use_reentrant=False).square().sum().backward()
    assert all(map(torch.equal, _state(checkpointed), _state(plain)))
    assert all(map(torch.equal, _grads(checkpointed), _grads(plain)))


def test_micro_batches_of_a_step_get_different_noise() -> None:
    model = _model()
    x = torch.randn(5, 6)
    gradients = []
    for _ in range(2):
        model.zero_grad()
        model(x).square().sum().backward()
        gradients.append(_grads(model))
    assert not torch.equal(gradients[0][0], gradients[1][0])
