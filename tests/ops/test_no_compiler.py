"""A machine without a C++ compiler trains with every kernel, and is told once that it is slower."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # two processes that load torch, one of which tries to compile

PROGRAM = """
import json, sys, warnings
import torch
from torch import nn
import bitcycle as bc
from bitcycle.ops import fused

fused.MIN_ELEMENTS, fused.WARM_UP = 1, 0
messages, losses = [], {}
warnings.showwarning = lambda message, category, *rest: messages.append(
    [category.__name__, str(message)]
)
warnings.simplefilter("always")
for kernel in ("simulate", "dequantize", "bf16", "int8", "int8/bf16/int8", "auto"):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10)
    )
    bc.quantize_model(model, kernel=kernel)
    bc.set_precision(model, "w6a6e8")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(16, 3, 8, 8), torch.arange(16) % 10
    losses[kernel] = []
    for _ in range(3):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses[kernel].append(loss.item())
print(json.dumps([messages, losses]))
"""


def _train(**environment: str) -> tuple[list[list[str]], dict[str, list[float]]]:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    messages, losses = json.loads(result.stdout.splitlines()[-1])
    return messages, losses


@pytest.fixture(scope="module")
def eager() -> dict[str, list[float]]:
    messages, losses = _train(BITCYCLE_COMPILE="0")
    assert not [text for kind, text in messages if kind == "BitcycleWarning"]
    return losses


def test_training_goes_on_with_one_warning(eager: dict[str, list[float]], tmp_path: Path) -> None:
    messages, losses = _train(
        CXX=str(tmp_path / "missing"),
        PATH=str(tmp_path),
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"),  # nothing compiled earlier
    )
    ours = [text for kind, text in messages if kind == "BitcycleWarning"]
    assert len(ours) == 1
    assert "runs uncompiled and slower: torch.compile failed (" in ours[0]
    assert "Install a C++ compiler, or set BITCYCLE_COMPILE=0" in ours[0]
    assert "\n" not in ours[0]
    assert losses == eager  # the same bits


def test_the_switch_keeps_the_peace(eager: dict[str, list[float]]) -> None:
    assert set(eager) == {
        "simulate", "dequantize", "bf16", "int8", "int8/bf16/int8", "auto"
    }  # fmt: skip
    for steps in eager.values():
        assert steps[-1] < steps[0]  # and it learns
