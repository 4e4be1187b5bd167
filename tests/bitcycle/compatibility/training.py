"""A small converted model, its data, and steps of training that two ways of doing it share."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

import bitcycle as bc
from tests.bitcycle.toys import randn

STEPS = 6
Step = Callable[[nn.Module, Tensor], None]


def mlp(**options: Any) -> nn.Sequential:
    """(N, 6) -> (N, 3), converted, at 4 bits forward and 8 backward."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    bc.quantize_model(model, **options)
    bc.set_precision(model, "w4a4e8")
    return model


def convnet(**options: Any) -> nn.Sequential:
    """(N, 2, 6, 6) -> (N, 3), with BatchNorm, converted, at the same bits."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3),
            nn.Flatten(), nn.Linear(64, 3),
        )  # fmt: skip
    bc.quantize_model(model, **options)
    bc.set_precision(model, "w4a4e8")
    return model


def inputs(number: int = STEPS) -> list[Tensor]:
    """For `mlp`."""
    return [randn(16, 6, seed=seed) for seed in range(number)]


def images(number: int = STEPS) -> list[Tensor]:
    """For `convnet`."""
    return [randn(8, 2, 6, 6, seed=seed) for seed in range(number)]


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Tensor],
    forward: str = "CR:3-8:1",
    run: nn.Module | None = None,
) -> bc.PrecisionScheduler:
    """A loop with a schedule; `run` is what is called, if not the model itself."""
    batches = list(batches)
    bits = bc.PrecisionScheduler(model, forward=forward, backward=8, total_steps=len(batches))
    for x in batches:
        (run or model)(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        bits.step()
    return bits


def weights(model: nn.Module) -> list[Tensor]:
    """Copies."""
    return [parameter.detach().clone() for parameter in model.parameters()]


def twins(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    """The model and a copy of it."""
    return model, copy.deepcopy(model)


def assert_equal(model: nn.Module, other: nn.Module) -> None:
    """To the bit."""
    for one, two in zip(weights(model), weights(other), strict=True):
        assert torch.equal(one, two)


def assert_close(model: nn.Module, other: nn.Module, rtol: float = 1e-5) -> None:
    """Up to rounding."""
    for one, two in zip(weights(model), weights(other), strict=True):
        torch.testing.assert_close(one, two, rtol=rtol, atol=1e-6)
