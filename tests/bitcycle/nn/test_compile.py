"""torch.compile: one graph for a whole schedule of bits, no break, eager's numbers and noise."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters

import bitcycle as bc
from bitcycle.model_precision import kernel_state
from bitcycle.native.library import library
from bitcycle.nn.control import advance_clocks
from bitcycle.quantizers import SBM

from .layers import library_calls, use_small_table

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
) -> tuple[_Net, _Net]:
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
    return model, twin


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_schedule_up_to_8_bits_is_one_graph(kernel: str) -> None:
    _train(kernel, top=None, channels_last=False, backend="inductor")


@pytest.mark.parametrize("kernel", KERNELS)
def test_packed_codes_are_one_graph_too(kernel: str) -> None:
    _train(kernel, top=4, channels_last=True, backend="aot_eager")


def test_integer_products_for_all_three_are_one_graph() -> None:
    _train("native", top=7, grids="per_input_channel", channels_last=True, backend="aot_eager")


@pytest.mark.parametrize("kernel", KERNELS)
def test_inside_autocast_a_schedule_is_one_graph(kernel: str) -> None:
    model, twin = _models(kernel, 8, "shared", "nearest")
    compiled, x = torch.compile(model, backend="aot_eager"), torch.randn(2, 3, 8, 8)
    for step, bits in enumerate(SCHEDULE):
        for each in (model, twin):
            bc.set_precision(each, f"w{bits}a{bits}e8")
        with torch.autocast("cpu", torch.bfloat16):
            ours, eager = _step(model, compiled, x, step), _step(twin, twin, x, step)
        assert [t.dtype for t in ours] == [t.dtype for t in eager]
        assert ours[0].dtype is torch.bfloat16
        for one, other in zip(ours, eager, strict=True):  # results are rounded to 8 bits
            assert float((one - other).norm()) <= 0.02 * float(other.norm()) + 1e-7
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


needs_library = pytest.mark.skipif(library() is None, reason="no native library")


@needs_library
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_auto_takes_native_for_large_layers_and_is_one_graph(
    backend: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_small_table(monkeypatch, tmp_path)
    compiled, eager = _train("auto", top=None, channels_last=False, backend=backend)
    names = {"conv": "native", "strided": "simulate", "fc": "simulate", "product": "simulate"}
    for model in (compiled, eager):
        decisions = {name: model.get_submodule(name).current_decision for name in names}
        assert {name: decision.kernel for name, decision in decisions.items()} == names
        assert all(decision.is_final for decision in decisions.values())
        assert decisions["conv"].reason.startswith("auto: native, 0.50 of simulate's time")
        assert decisions["fc"].reason == "auto: too small to gain"


@needs_library
def test_what_auto_comes_to_in_training_stays_for_other_batches_as_in_eager(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_small_table(monkeypatch, tmp_path)
    layer = bc.quantize_model(nn.Linear(32, 32))
    bc.set_precision(layer, "w8a8e8")
    twin = copy.deepcopy(layer)
    compiled = torch.compile(layer, backend="aot_eager")
    for is_training, rows in ((True, 64), (False, 2), (True, 2)):
        for run, owner in ((compiled, layer), (twin, twin)):
            owner.train(is_training)
            run(torch.ones(rows, 32))
            assert owner.current_decision.kernel == "native", (is_training, rows)
            assert owner.current_decision.is_final
            assert kernel_state(owner)["kernels"] == {"": "native"}


@needs_library
def test_an_attention_takes_the_kernel_of_its_first_product_as_in_eager(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_small_table(monkeypatch, tmp_path)
    module = nn.MultiheadAttention(32, 2, batch_first=True)
    bc.set_precision(bc.quantize_model(module), "w8a8e8")
    twin, x = copy.deepcopy(module), torch.randn(4, 16, 32)
    counts = []
    for run in (torch.compile(module, backend="aot_eager"), twin):
        run(x, x, x, need_weights=False)
        with library_calls() as calls:
            run(x, x, x, need_weights=False)
        counts.append(calls)
    assert counts == [["bitcycle_forward"] * 6] * 2


@needs_library
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_step_calls_the_library_once_for_each_layer_and_direction(backend: str) -> None:
    model, _ = _models("native", None, "shared")
    bc.set_precision(model, "w8a8e8")
    compiled, x = torch.compile(model, backend=backend), torch.randn(2, 3, 8, 8)
    _step(model, compiled, x, 0)
    with library_calls() as calls:
        _step(model, compiled, x, 1)
    assert calls == ["bitcycle_forward"] * 4 + ["bitcycle_backward"] * 4


@needs_library
def test_the_graphs_of_a_layer_have_one_operator_of_ours_for_each_direction() -> None:
    found: list[Counter[str]] = []

    def listing(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        targets = [
            str(part)
            for node in graph.graph.nodes
            for part in (node.target, *node.args)
            if isinstance(part, torch._ops.OpOverload)
        ]
        found.append(Counter(name for name in targets if name.startswith("bitcycle")))
        return make_boxed_func(graph.forward)

    model, _ = _models("native", None, "shared")
    bc.set_precision(model, "w8a8e8")
    compiled = torch.compile(model, backend=aot_autograd(fw_compiler=listing, bw_compiler=listing))
    _step(model, compiled, torch.randn(2, 3, 8, 8), 0)
    assert found == [
        {"bitcycle.layer_forward.default": 4}, {"bitcycle.layer_backward.default": 4},
    ]  # fmt: skip


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
