"""torch.compile: one graph for a whole schedule of bits, no break, eager's numbers and noise."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

import bitcycle as bc
from bitcycle.nn.layer import advance_clocks
from bitcycle.quantizers import SBM

pytestmark = pytest.mark.slow  # half a minute each with a cold compiler

SCHEDULE = [3, 5, 8, 7, 4, 3]
KERNELS = ["simulate", "native"]


class _Net(nn.Module):
    """A convolution, a strided one in groups, a linear layer and a product of activations."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.strided = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 2, stride=2, groups=2)
        self.fc, self.product = nn.Linear(4, 5), bc.MatMul()

    def forward(self, x: Tensor) -> Tensor:
        maps = self.strided(self.conv(x).relu()).relu()
        hidden = self.fc(maps.flatten(2).transpose(1, 2))  # (N, H * W, 5)
        return self.product(hidden, hidden.transpose(1, 2))


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def _models(
    kernel: str, top: int | None, grids: str, rounding: str = "stochastic"
) -> tuple[_Net, _Net]:
    torch.manual_seed(0)
    model = _Net()
    rules = SBM(grad_input_weight=grids, error_rounding=rounding)
    bc.quantize_model(model, rules, kernel=kernel, max_bits=top)
    return model, copy.deepcopy(model)


def _step(model: nn.Module, run: nn.Module, x: Tensor, step: int) -> list[Tensor]:
    advance_clocks([m for m in model.modules() if isinstance(m, bc.nn.QuantizedLayer)], step)
    model.zero_grad()
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    output = run(x)
    output.square().mean().backward()
    return [output.detach(), x.grad, *(p.grad for p in model.parameters())]


def _assert_equal(ours: list[Tensor], eager: list[Tensor]) -> None:
    """Up to float32 rounding, whose places a compiler may choose."""
    for one, other in zip(ours, eager, strict=True):
        assert float((one - other).norm()) <= 1e-4 * float(other.norm()) + 1e-7


def _train(
    kernel: str, *, top: int | None, grids: str = "shared", channels_last: bool, backend: str
) -> None:
    # noise of channels-last errors: see the last test
    model, twin = _models(kernel, top, grids, "nearest" if channels_last else "stochastic")
    compiled = torch.compile(model, backend=backend)
    x = torch.randn(2, 3, 8, 8)
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
    scheduled = [min(bits, top or 8) for bits in SCHEDULE]
    for each in (model, twin):  # the most bits of the schedule are known before its first step
        for layer in each.modules():
            if isinstance(layer, bc.nn.QuantizedLayer):
                layer.expect_bits(dict.fromkeys(("weight", "act", "error"), max(scheduled)))
    graphs = []
    for step, bits in enumerate(scheduled):
        for each in (model, twin):
            bc.set_precision(each, f"w{bits}a{bits}e{max(scheduled)}")
        ours, eager = _step(model, compiled, x, step), _step(twin, twin, x, step)
        _assert_equal(ours, eager)
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs == [1] * len(scheduled)
    assert not counters["graph_break"]
    for one, other in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_schedule_up_to_8_bits_is_one_graph(kernel: str) -> None:
    _train(kernel, top=None, channels_last=False, backend="inductor")


@pytest.mark.parametrize("kernel", KERNELS)
def test_packed_codes_are_one_graph_too(kernel: str) -> None:
    _train(kernel, top=4, channels_last=True, backend="aot_eager")


def test_integer_products_for_all_three_are_one_graph() -> None:
    _train("native", top=7, grids="per_input_channel", channels_last=True, backend="aot_eager")


@pytest.mark.parametrize("kernel", ["simulate", "native"])
def test_evaluation_and_training_are_a_graph_each(kernel: str) -> None:
    model, twin = _models(kernel, 7, "shared")
    compiled = torch.compile(model, backend="aot_eager")
    x = torch.randn(2, 3, 8, 8)
    for each in (model, twin):
        bc.set_precision(each, "w4a4e4")
    _step(model, compiled, x, 0)
    _step(twin, twin, x, 0)
    with torch.no_grad():
        for bits in (4, 6, 7):
            for each in (model, twin):
                bc.set_precision(each, f"w{bits}a{bits}e4")
            _assert_equal([compiled.eval()(bits * x)], [twin.eval()(bits * x)])
    assert counters["stats"]["unique_graphs"] == 2
    assert not counters["graph_break"]


def test_there_is_one_graph_per_pattern_of_float_roles() -> None:
    model, _ = _models("simulate", None, "shared")
    compiled = torch.compile(model, backend="aot_eager")
    graphs = []
    for precision in ("w4a4e8", "fp32", "w8a8e8", "w4a4", "w3a3e3", "fp32", "w2a2", "w32a4e4"):
        bc.set_precision(model, precision)
        _step(model, compiled, torch.randn(2, 3, 8, 8), 0)
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs == [1, 2, 2, 3, 3, 3, 3, 4]


def test_the_noise_is_eager_s_where_the_error_has_another_layout_than_the_output() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.conv(x).flatten(2).transpose(1, 2))  # the error is channels last

    torch.manual_seed(0)
    model = bc.quantize_model(Tokens(), kernel="simulate")
    bc.set_precision(model, "w4a4e4")
    twin = copy.deepcopy(model)
    x = torch.randn(2, 3, 8, 8)
    compiled = torch.compile(model, backend="aot_eager")
    _assert_equal(_step(model, compiled, x, 0), _step(twin, twin, x, 0))
