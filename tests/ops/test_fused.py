"""Fused passes: compiled when it pays, equal to the plain function in every bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bitcycle.ops import affine, fused
from bitcycle.ops.affine import round_nearest, round_stochastic
from bitcycle.ops.fused import Fused
from bitcycle.quantizers import SBM
from bitcycle.warnings import BitcycleWarning

KEY = torch.tensor([123, 456], dtype=torch.int32)
LEVELS = torch.tensor(255.0)


def _shift(x: Tensor) -> Tensor:
    return (x * 3.7 + 0.1).round()


@pytest.fixture
def _compile_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "MIN_ELEMENTS", 1)
    monkeypatch.setattr(fused, "WARM_UP", 0)


def _broken_at_once(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("no C++ compiler\nmany lines of log")


def _broken_when_called(*args: Any, **kwargs: Any) -> Any:
    return _broken_at_once


def test_below_the_threshold_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", _broken_at_once)
    x = torch.randn(1000)
    assert torch.equal(Fused(_shift)(x), _shift(x))


def test_a_short_script_never_waits_for_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(torch, "compile", lambda function, **_: made.append(1) or function)
    monkeypatch.setattr(fused, "MIN_ELEMENTS", 100)
    monkeypatch.setattr(fused, "WARM_UP", 1000)
    shift = Fused(_shift)
    for _ in range(9):
        shift(torch.randn(100))
        shift(torch.randn(99))  # too small to count
    assert made == []
    shift(torch.randn(100))
    assert made == [1]


@pytest.mark.usefixtures("_compile_all")
@pytest.mark.parametrize("failure", [_broken_at_once, _broken_when_called])
def test_without_a_compiler_it_warns_once_and_gives_the_same_result(
    failure: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", failure)
    monkeypatch.setattr(Fused, "_has_warned", False)
    shift, x = Fused(_shift), torch.randn(1000)
    with pytest.warns(
        BitcycleWarning, match=r"runs uncompiled and slower.*\(no C\+\+ compiler\)"
    ) as log:
        first = shift(x)
    assert len(log) == 1
    assert "many lines" not in str(log[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = shift(x)
        assert torch.equal(Fused(_shift)(x), _shift(x))  # another pass: it was said already
    assert torch.equal(first, _shift(x))
    assert torch.equal(second, _shift(x))


@pytest.mark.usefixtures("_compile_all")
def test_the_environment_can_keep_every_pass_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BITCYCLE_COMPILE", "0")
    monkeypatch.setattr(torch, "compile", _broken_at_once)
    x = torch.randn(1000)
    assert torch.equal(Fused(_shift)(x), _shift(x))


@pytest.mark.usefixtures("_compile_all")
def test_one_compiled_function_serves_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def counting(function: Any, **kwargs: Any) -> Any:
        made.append(kwargs)
        return function

    monkeypatch.setattr(torch, "compile", counting)
    shift = Fused(_shift)
    for size in (10, 20, 30):
        shift(torch.randn(size))
    assert made == [{"dynamic": True, "fullgraph": True}]


def _large(channels_last: bool) -> Tensor:
    torch.manual_seed(0)
    x = torch.randn(8, 16, 33, 33)  # 139,392 elements: above the threshold as it is
    return x.to(memory_format=torch.channels_last) if channels_last else x


@pytest.mark.parametrize("channels_last", [False, True])
def test_plain_and_compiled_passes_agree_in_every_bit(
    channels_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "WARM_UP", 0)
    x = _large(channels_last)
    assert x.numel() >= fused.MIN_ELEMENTS
    low, high = x.min(), x.max()
    scale = (high - low) / LEVELS
    rows = torch.linspace(0.5, 2.0, 8).view(8, 1, 1, 1)

    def passes() -> list[Tensor]:
        return [
            round_nearest(x, scale, low, LEVELS),
            round_nearest(x, scale * rows, low * rows, LEVELS),
            round_stochastic(x, scale, low, LEVELS, KEY),
        ]

    compiled = passes()
    counters = [f._compiled for f in (affine._fused_nearest, affine._fused_stochastic_flat)]
    assert all(counters)
    monkeypatch.setattr(fused, "MIN_ELEMENTS", 1 << 40)
    for ours, plain in zip(compiled, passes(), strict=True):
        assert torch.equal(ours, plain)
        assert ours.stride() == x.stride()


class _BigOps(TorchDispatchMode):
    """Lists the operations that read or make at least `size` elements, views aside."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.names = size, []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # fmt: skip
        result = func(*args, **(kwargs or {}))
        tensors = [t for t in (*args, result) if isinstance(t, Tensor)]
        if any(t.numel() >= self.size for t in tensors) and not func.is_view:
            self.names.append(func.overloadpacket.__name__)
        return result


@pytest.mark.parametrize("role", ["act", "error", "weight"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_quantizing_a_tensor_is_one_reduction_and_one_elementwise_pass(
    role: str, channels_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = _large(channels_last)
    calls = []

    def one_pass(self: Fused, x: Tensor, *args: Any) -> Tensor:
        calls.append(self.plain.__name__)
        return x  # a view: what the compiled pass would write once

    monkeypatch.setattr(Fused, "__call__", one_pass)
    sbm = SBM()
    with _BigOps(x.numel()) as seen:
        within = sbm.range_of(role, x, (0,) if role == "weight" else ())
        sbm.encode(role, x, torch.tensor(255), within, KEY)
    # along one dimension torch's aminmax takes ten times as long as both of these
    assert seen.names == (["amin", "amax"] if role == "weight" else ["aminmax"])
    assert len(calls) == 1


# -- training without a C++ compiler --------------------------------------------------------------


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


@pytest.mark.slow
def test_without_a_compiler_training_works_with_one_warning(
    eager: dict[str, list[float]], tmp_path: Path
) -> None:
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


@pytest.mark.slow
def test_the_switch_silences_the_warning(eager: dict[str, list[float]]) -> None:
    assert set(eager) == {
        "simulate", "dequantize", "bf16", "int8", "int8/bf16/int8", "auto"
    }  # fmt: skip
    for steps in eager.values():
        assert steps[-1] < steps[0]  # and it learns
