"""bitsandbytes' optimizers with 8-bit state, which run on the CPU too."""

import pytest
import torch
from torch import nn

import bitcycle as bc
from tests.bitcycle.toys import randn

from .training import train

bitsandbytes = pytest.importorskip("bitsandbytes")


def test_a_schedule_trains_with_an_optimizer_state_of_8_bits():
    torch.manual_seed(0)
    model = bc.quantize_model(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)))
    optimizer = bitsandbytes.optim.AdamW8bit(model.parameters(), lr=1e-3)
    batches = [randn(32, 64)] * 6
    before = model(batches[0]).square().mean().item()
    train(model, optimizer, batches)
    assert model(batches[0]).square().mean().item() < before
    assert optimizer.state[model[0].weight]["state1"].dtype == torch.uint8
