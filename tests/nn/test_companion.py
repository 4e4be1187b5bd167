"""Companions: converted beside the layers, with nothing of their own."""

from __future__ import annotations

import torch
from torch import nn

from bitcycle.nn import LAYERS
from bitcycle.nn.companion import COMPANIONS, Companion, accompany, can_accompany
from bitcycle.nn.settings import ModelState


def test_companions_are_no_layers() -> None:
    assert COMPANIONS.names() == [
        "torch.nn.modules.activation.ReLU",
        "torch.nn.modules.dropout.Dropout",
    ]
    assert not set(COMPANIONS.names()) & set(LAYERS.names())


def test_modules_that_conversion_would_change_are_left_alone() -> None:
    class Own(nn.ReLU):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return input

    taken = nn.ReLU()
    taken.shared = "the user's own"  # type: ignore[assignment]
    assert can_accompany(nn.ReLU())
    assert not any(map(can_accompany, (Own(), taken, nn.GELU(), nn.Linear(1, 1))))


def test_memory_is_saved_with_bits_for_ordinary_tensors_that_need_a_gradient() -> None:
    class Special(torch.Tensor):
        pass

    module, shared = nn.ReLU(), ModelState()
    accompany(module, shared)
    assert isinstance(module, Companion)
    x = torch.ones(3, requires_grad=True)
    assert not module.saves_memory(x)
    shared.note_bits("layer", True)
    assert module.saves_memory(x)
    assert module.saves_memory(nn.Parameter(x))
    special = x.detach().as_subclass(Special).requires_grad_()
    sparse = x.detach().to_sparse().requires_grad_()
    assert not any(map(module.saves_memory, (x.detach(), special, sparse)))
    with torch.no_grad():
        assert not module.saves_memory(x)


def test_a_companion_can_be_given_to_another_model_and_back() -> None:
    module, one, other = nn.ReLU(), ModelState(), ModelState()
    accompany(module, one)
    assert can_accompany(module)
    accompany(module, other)
    assert isinstance(module, Companion)
    assert module.shared is other
    module.become_float()
    assert type(module) is nn.ReLU
    assert vars(module) == vars(nn.ReLU())
