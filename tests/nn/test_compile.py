"""torch.compile: bits are data, so a schedule runs through one graph and the noise is the same."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

import bitcycle as bc
from bitcycle.nn.base import advance_clocks


class _Net(nn.Module):
    """A convolution, a linear layer and a product of activations."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc, self.product = nn.Conv2d(3, 4, 3), nn.Linear(4, 5), bc.MatMul()

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.conv(x).relu().flatten(2).transpose(1, 2)  # (N, H * W, 4)
        hidden = self.fc(tokens)
        return self.product(hidden, hidden.transpose(1, 2))


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def _models() -> tuple[_Net, _Net]:
    torch.manual_seed(0)
    model = _Net()
    bc.quantize_model(model)
    return model, copy.deepcopy(model)


def _step(model: nn.Module, run: nn.Module, x: Tensor, step: int) -> list[Tensor]:
    advance_clocks([m for m in model.modules() if isinstance(m, bc.nn.QuantizedLayer)], step)
    model.zero_grad()
    x = x.clone().requires_grad_()
    output = run(x)
    output.square().mean().backward()
    return [output.detach(), x.grad, *(p.grad for p in model.parameters())]


@pytest.mark.slow
def test_a_schedule_of_bits_does_not_recompile_and_equals_eager() -> None:
    model, twin = _models()
    compiled = torch.compile(model)
    x = torch.randn(2, 3, 5, 5)
    graphs = []
    for step, bits in enumerate([3, 4, 5, 6, 7, 8, 7, 6, 5, 4, 3]):
        for each in (model, twin):
            bc.set_precision(each, f"w{bits}a{bits}e8")
        ours, eager = _step(model, compiled, x, step), _step(twin, twin, x, step)
        for one, other in zip(ours, eager, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
        graphs.append(counters["stats"]["unique_graphs"])
        for one, other in zip(model.buffers(), twin.buffers(), strict=True):
            torch.testing.assert_close(one, other)  # ranges, clocks, health
    assert graphs == [1] * 11
    assert not counters["graph_break"]


@pytest.mark.slow
def test_there_is_one_graph_per_pattern_of_float_roles() -> None:
    model, _ = _models()
    compiled = torch.compile(model, backend="aot_eager")
    x = torch.randn(2, 3, 5, 5)
    graphs = []
    for precision in ("w4a4e8", "fp32", "w8a8e8", "w4a4", "w3a3e3", "fp32", "w2a2", "w32a4e4"):
        bc.set_precision(model, precision)
        _step(model, compiled, x, 0)
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs == [1, 2, 2, 3, 3, 3, 3, 4]


@pytest.mark.slow
def test_evaluation_is_one_more_graph_on_the_running_range() -> None:
    model, twin = _models()
    compiled = torch.compile(model, backend="aot_eager")
    x = torch.randn(2, 3, 5, 5)
    for each in (model, twin):
        bc.set_precision(each, "w4a4e4")
    _step(model, compiled, x, 0)
    _step(twin, twin, x, 0)
    graphs = counters["stats"]["unique_graphs"]
    with torch.no_grad():
        for factor in (1.0, 2.0):
            ours, theirs = compiled.eval()(factor * x), twin.eval()(factor * x)
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
            bc.set_precision(model, "w5a5e4")
            bc.set_precision(twin, "w5a5e4")
    assert counters["stats"]["unique_graphs"] == graphs + 1
