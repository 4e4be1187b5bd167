"""torchao's optimizers with 8-bit state."""

import pytest
import torch
from torch import nn

import bitcycle as bc
from tests.bitcycle.toys import randn

from .training import train

optim = pytest.importorskip("torchao.optim")
pytestmark = pytest.mark.slow  # torchao compiles its step


def wide():
    """Layers large enough that their state is quantized: 4,096 elements and more."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
    return bc.quantize_model(model)


def test_a_schedule_trains_with_an_optimizer_state_of_8_bits():
    model = wide()
    optimizer = optim.AdamW8bit(model.parameters(), lr=1e-3)
    batches = [randn(32, 64)] * 6
    before = model(batches[0]).square().mean().item()
    train(model, optimizer, batches)
    assert model(batches[0]).square().mean().item() < before
    assert optimizer.state[model[0].weight]["exp_avg"].codes.dtype == torch.uint8
