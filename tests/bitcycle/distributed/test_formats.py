"""DistributedDataParallel with two processes while formats change: NVFP4 with stochastic errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch.nn.functional as F
from torch import optim
from torch.nn.parallel import DistributedDataParallel

import bitcycle as bc
from tests.bitcycle.distributed.launch import run_together
from tests.bitcycle.distributed.training import batch_at, digest, perceptron
from tests.bitcycle.toys import linears, randn

pytestmark = pytest.mark.slow


def heal(is_converted_last: bool = False) -> dict[str, Any]:
    """Eight steps, the last two with a forward pass in bf16."""
    model = perceptron()
    if not is_converted_last:
        bc.quantize_model(model, "nvfp4")
    wrapped = DistributedDataParallel(model)
    if is_converted_last:
        bc.quantize_model(wrapped, "nvfp4")
    bits = bc.PrecisionScheduler(
        wrapped, forward="stages:nvfp4@0.75,bf16", backward="nvfp4", total_steps=8
    )
    optimizer = optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)
    seen, losses = [], []
    for step in range(8):
        x, y = batch_at(step, model[0].weight.dtype)
        loss = F.cross_entropy(wrapped(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(str(bits.precision))
        losses.append(loss.item())
        bits.step()
    return {"bits": seen, "weights": digest(model.parameters()), "loss": losses}


def test_ranks_agree_and_a_run_is_the_same_again(tmp_path):
    first, second = run_together(heal, 2, tmp_path)
    assert first["weights"] == second["weights"]
    assert first["bits"] == second["bits"]
    assert first["bits"] == ["w=nvfp4,a=nvfp4,e=nvfp4"] * 6 + ["w=bf16,a=bf16,e=nvfp4"] * 2
    assert first["loss"] != second["loss"]  # each has its part of the batch
    assert run_together(heal, 2, tmp_path) == [first, second]
    assert run_together(heal, 2, tmp_path, is_converted_last=True) == [first, second]


def gradient_of_equal_data() -> list[float]:
    """Of a weight in this process, from data that all processes have."""
    model = bc.quantize_model(linears(16, 16), "nvfp4")
    bc.set_precision(model, "FWnvfp4/BWnvfp4")
    model(randn(32, 16)).square().sum().backward()
    gradient: list[float] = model[0].weight.grad.flatten().tolist()
    return gradient


def test_every_rank_rounds_errors_with_noise_of_its_own(tmp_path):
    first, second = run_together(gradient_of_equal_data, 2, tmp_path)
    assert first != second
