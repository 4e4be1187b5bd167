""" "auto" is decided by the first shapes: of an evaluation until those of training come."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bitcycle as bc
from bitcycle.native.library import library
from bitcycle.nn import QuantizedLayer

from .layers import use_small_table

needs_library = pytest.mark.skipif(library() is None, reason="no native library")


@pytest.fixture(autouse=True)
def _table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_small_table(monkeypatch, tmp_path)


def convert(module: nn.Module, kernel: str = "auto", precision: str = "w8a8e8") -> nn.Module:
    bc.quantize_model(module, kernel=kernel)
    bc.set_precision(module, precision)
    return module


def linear(kernel: str = "auto") -> QuantizedLayer:
    torch.manual_seed(0)
    layer = convert(nn.Linear(32, 32), kernel)
    assert isinstance(layer, QuantizedLayer)
    return layer


SMALL, LARGE = torch.randn(2, 32), torch.randn(64, 32)
unobserved = pytest.mark.filterwarnings("ignore:layer .* has never observed")


def found(layer: QuantizedLayer) -> tuple[str, bool]:
    assert layer.decision is not None
    assert layer.settings.kernel.is_undecided  # what was asked for stays
    assert layer.kernel.name == layer.decision.kernel
    assert layer.kernel_reason == layer.decision.reason
    return layer.decision.kernel, layer.decision.is_final


# -- evaluation and training ----------------------------------------------------------------------


@needs_library
@unobserved
def test_an_evaluation_decides_until_training_does_for_good() -> None:
    for first, other, names in (
        (SMALL, LARGE, ("simulate", "native")),
        (LARGE, SMALL, ("native", "simulate")),
    ):
        layer = linear().eval()
        assert layer.decision is None
        assert layer.kernel.is_undecided
        layer(first)
        assert found(layer) == (names[0], False)
        layer.train()(other)
        assert found(layer) == (names[1], True)
        for x in (first, other):
            layer(x)
            layer.eval()(x)
            assert found(layer.train()) == (names[1], True)


@needs_library
@pytest.mark.parametrize("x", [SMALL, LARGE], ids=["small", "large"])
def test_an_evaluation_computes_what_the_kernel_of_training_does(x: Tensor) -> None:
    trained = linear()
    trained(x).sum().backward()
    name = trained.kernel.name
    for kernel in ("auto", name):
        loaded = linear(kernel)
        loaded.load_state_dict(trained.state_dict())
        assert torch.equal(loaded.eval()(x), trained.eval()(x))
        assert loaded.kernel.name == name


@needs_library
def test_calibration_does_not_decide_for_training() -> None:
    for first, other, names in (
        (SMALL, LARGE, ("simulate", "native")),
        (LARGE, SMALL, ("native", "simulate")),
    ):
        layer = linear()
        bc.calibrate(layer, [first])
        assert found(layer) == (names[0], False)
        layer(other)
        assert found(layer) == (names[1], True)


@unobserved
def test_an_empty_batch_decides_nothing() -> None:
    layer = linear()
    for mode in (True, False):
        assert layer.train(mode)(torch.empty(0, 32)).shape == (0, 32)
        assert layer.decision is None
        assert layer.kernel.is_undecided


def test_other_settings_are_decided_anew() -> None:
    layer = linear()
    layer(SMALL)
    assert layer.decision is not None
    layer.change_settings(layer.settings)
    assert layer.decision is None


@needs_library
@unobserved
def test_the_first_product_of_a_layer_decides_for_all_of_them() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 16, 32)
    for mode in (True, False):
        module = convert(nn.MultiheadAttention(32, 2, batch_first=True))
        module.train(mode)(x, x, x)
        assert found(module) == ("native", mode)
        assert [plan.kernel.name for plan in module._plans.values()] == ["native"] * 6


@needs_library
@unobserved
def test_the_evaluation_of_an_attention_is_that_of_its_training() -> None:
    torch.manual_seed(0)
    module, x = nn.MultiheadAttention(32, 2, batch_first=True), torch.randn(4, 16, 32)
    trained, fresh = (convert(copy.deepcopy(module)) for _ in range(2))
    trained(x, x, x)
    fresh.load_state_dict(trained.state_dict())
    assert all(map(torch.equal, fresh.eval()(x, x, x), trained.eval()(x, x, x)))


class Net(nn.Module):
    """A convolution, a recurrent layer, attention, a product of activations and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1)
        self.lstm, self.attention = nn.LSTM(16, 32), nn.MultiheadAttention(32, 2)
        self.product, self.fc = bc.MatMul(), nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.lstm(self.conv(x).relu().flatten(2).permute(2, 0, 1))[0]
        mixed = self.attention(tokens, tokens, tokens, need_weights=False)[0].transpose(0, 1)
        return self.fc(self.product(self.product(mixed, mixed.mT), mixed))


@needs_library
@pytest.mark.parametrize("precision", ["w8a8e8", "w4a4e4"])
def test_a_loaded_model_evaluates_to_the_bits_of_the_trained_one(precision: str) -> None:
    torch.manual_seed(0)
    trained, x = convert(Net(), precision=precision), torch.randn(2, 3, 6, 6)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        trained(x).square().mean().backward()
        optimizer.step()
    loaded = convert(Net(), precision=precision)
    loaded.load_state_dict(trained.state_dict())
    assert torch.equal(loaded.eval()(x), trained.eval()(x))
    kernels = [
        {n: m.kernel.name for n, m in model.named_modules() if isinstance(m, QuantizedLayer)}
        for model in (trained, loaded)
    ]
    assert kernels[0] == kernels[1]
    assert set(kernels[0].values()) == {"native", "simulate"}


# -- the meta device ------------------------------------------------------------------------------

MODELS: dict[str, tuple[Callable[[], nn.Module], list[tuple[int, ...]]]] = {
    "Linear": (lambda: nn.Linear(32, 16), [(8, 4, 32)]),
    "Conv2d": (lambda: nn.Conv2d(8, 12, 3, stride=2, padding=1), [(2, 8, 9, 9)]),
    "MatMul": (bc.MatMul, [(2, 24, 32), (2, 32, 24)]),
    "LSTM": (lambda: nn.LSTM(32, 16, 2, bidirectional=True), [(2, 8, 32)]),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(32, 2), [(6, 4, 32)] * 3),
}


def shapes(module: nn.Module, sizes: list[tuple[int, ...]], device: str) -> list[Any]:
    """Of the outputs and of all gradients of a step, and of an evaluation after it."""
    inputs = [torch.ones(size, device=device, requires_grad=True) for size in sizes]

    def outputs() -> list[Tensor]:
        made = module(*inputs)
        made = [made] if isinstance(made, Tensor) else [made[0], *_flat(made[1])]
        assert all(x.device.type == device for x in made)
        return made

    made = outputs()
    made[0].sum().backward()
    grads = [x.grad for x in (*inputs, *module.parameters())]
    module.eval()
    with torch.no_grad():
        made += outputs()
    return [(x.shape, x.stride(), x.dtype) for x in (*made, *grads)]


def _flat(x: Any) -> list[Tensor]:
    return [x] if isinstance(x, Tensor) else [tensor for part in x for tensor in _flat(part)]


@unobserved
@pytest.mark.parametrize("kernel", ["auto", "native", "simulate"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_on_the_meta_device_has_the_shapes_of_the_real_one(name: str, kernel: str) -> None:
    make, sizes = MODELS[name]
    for precision in ("w8a8e8", "w4a4e4", "w8a8", "bf16"):
        expected = shapes(convert(make(), kernel, precision), sizes, "cpu")
        moved = convert(make(), kernel, precision).to("meta")
        with torch.device("meta"):
            made = convert(make(), kernel, precision)
        for module in (moved, made):
            assert shapes(module, sizes, "meta") == expected, precision
            assert module.decision is None  # nothing is recorded
