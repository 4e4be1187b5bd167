"""What a converted layer adds to its float module: bits as data, written seldom."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import bitcycle as bc
from bitcycle.nn.base import advance_clocks
from bitcycle.ops.noise import hash_ints

from .layers import convert


class Writes(TorchDispatchMode):
    """Counts the operations that write to a tensor in place."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # fmt: skip
        if func._schema.is_mutable:
            self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def _model() -> nn.Module:
    return bc.quantize_model(nn.Sequential(nn.Linear(4, 4), nn.Conv1d(4, 4, 1), bc.MatMul()))


def test_set_precision_writes_one_tensor_per_changed_layer() -> None:
    model = _model()
    with Writes() as writes:
        bc.set_precision(model, "w4a4e8")
    assert writes.names == ["copy_"] * 3
    with Writes() as writes:
        bc.set_precision(model, {"0": "w5a5e8"})
    assert writes.names == ["copy_"]


def test_set_precision_writes_nothing_when_nothing_changed() -> None:
    model = _model()
    bc.set_precision(model, "w4a4e8")
    model[0](torch.randn(2, 4)).sum().backward()  # a call advances the clock of the noise
    with Writes() as writes:
        bc.set_precision(model, "w4a4e8")
    assert writes.names == []


def test_set_precision_writes_again_what_something_else_overwrote() -> None:
    layer = convert(nn.Linear(4, 4), "w4a4e8")
    layer.control.zero_()  # as an average over buffers would
    assert layer.set_precision(layer.precision)
    assert layer.control[:4].tolist() == [15, 15, 255, 0]
    assert not layer.set_precision(layer.precision)


def test_the_control_tensor_holds_level_counts_and_the_clock() -> None:
    layer = convert(nn.Linear(4, 4), "w2a8e5")
    assert layer.control.dtype == torch.int32
    # levels 2^b - 1 of weight, act, error, grad; hash(seed, rank, layer); step; call
    assert layer.control[:4].tolist() == [3, 255, 31, 0]
    assert layer.control[4:].tolist() == [hash_ints(0, 0, 0), 0, 0]  # crc32 of "" is 0
    layer(torch.randn(2, 4))
    assert layer.control[4:].tolist() == [hash_ints(0, 0, 0), 0, 1]


def test_bits_of_24_and_more_are_no_bits() -> None:
    layer = convert(nn.Linear(4, 4), "w24a23e32")
    assert layer.quantized_roles == ("act",)
    assert layer.control[:4].tolist() == [0, 2**23 - 1, 0, 0]


def test_a_role_without_a_rule_takes_no_effect() -> None:
    layer = convert(nn.Linear(4, 4), "FW4/BW8")
    assert layer.quantized_roles == ("weight", "act", "error")
    assert layer.precision.grad == 8


def test_evaluation_without_gradients_does_not_advance_the_noise() -> None:
    layer = convert(nn.Linear(4, 4), "w4a4e4")
    layer(torch.randn(2, 4))
    before = layer.control.clone()
    with torch.no_grad():
        layer.eval()(torch.randn(2, 4))
    assert torch.equal(layer.control, before)


def test_a_new_step_resets_the_call_and_moves_the_noise() -> None:
    layer = convert(nn.Linear(4, 4), "w4a4e4")
    layer(torch.randn(2, 4))
    advance_clocks([layer], 7)
    assert layer.control[5:].tolist() == [7, 0]
    assert layer.shared.step == 7
    assert not layer.set_precision(layer.precision)  # the bits were not touched


def test_layers_and_seeds_have_noise_of_their_own() -> None:
    model, other = _model(), bc.quantize_model(nn.Sequential(nn.Linear(4, 4)), seed=1)
    bases = [int(layer.control[4]) for layer in (*model, *other)]
    assert len(set(bases)) == 4


def test_conversion_keeps_the_parameters_and_the_type() -> None:
    layer = nn.Linear(4, 3)
    weight = layer.weight
    converted = convert(layer)
    assert converted is layer
    assert isinstance(layer, nn.Linear)
    assert layer.weight is weight
    assert sorted(layer.state_dict()) == ["act_range", "bias", "weight"]


def test_conversion_back_leaves_no_trace() -> None:
    layer = nn.Conv2d(3, 4, 3, padding_mode="circular", padding=1)
    attributes, text = set(layer.__dict__), repr(layer)
    convert(layer, "w4a4e4")(torch.randn(1, 3, 5, 5))
    bc.unquantize_model(layer)
    assert type(layer) is nn.Conv2d
    assert set(layer.__dict__) == attributes
    assert list(layer.state_dict()) == ["weight", "bias"]
    assert layer._non_persistent_buffers_set == set()
    assert repr(layer) == text


def test_the_text_of_a_layer_shows_its_precision() -> None:
    assert "precision=w4a4e8, quantizer=SBM" in repr(convert(nn.Linear(4, 3), "w4a4e8"))
    assert repr(convert(bc.MatMul())) == "QuantizedMatMul(precision=fp32, quantizer=SBM)"


def test_the_bits_of_a_forward_hold_for_its_backward() -> None:
    def gradient(later: str | None) -> Tensor:
        layer = convert(nn.Linear(4, 3, bias=False), "w3a3e3")
        with torch.no_grad():
            layer.weight.copy_(torch.linspace(-1, 1, 12).view(3, 4))
        output = layer(torch.linspace(-1, 1, 8).view(2, 4))
        if later is not None:
            bc.set_precision(layer, later)
        output.square().sum().backward()
        assert layer.weight.grad is not None
        return layer.weight.grad

    expected = gradient(None)
    for later in ("w8a8e8", "fp32"):
        assert torch.equal(gradient(later), expected)
