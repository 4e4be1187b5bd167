"""Without bits a converted layer is its float parent, in every bit of output and gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import bitcycle as bc
from bitcycle.nn import LAYERS, QuantizedLayer

# One for every registered layer: a layer without an entry here fails the first test.
EXAMPLES: dict[str, tuple[Callable[[], nn.Module], list[tuple[int, ...]]]] = {
    "torch.nn.modules.linear.Linear": (lambda: nn.Linear(7, 5), [(4, 7)]),
    "torch.nn.modules.conv.Conv1d": (lambda: nn.Conv1d(4, 6, 3, groups=2), [(2, 4, 9)]),
    "torch.nn.modules.conv.Conv2d": (
        lambda: nn.Conv2d(4, 6, 2, padding="same", padding_mode="reflect"),
        [(2, 4, 6, 5)],
    ),
    "torch.nn.modules.conv.Conv3d": (lambda: nn.Conv3d(4, 6, 3, padding=1), [(2, 4, 4, 5, 4)]),
    "torch.nn.modules.conv.ConvTranspose1d": (
        lambda: nn.ConvTranspose1d(4, 6, 3, stride=2),
        [(2, 4, 9)],
    ),
    "torch.nn.modules.conv.ConvTranspose2d": (
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1, groups=2),
        [(2, 4, 6, 5)],
    ),
    "torch.nn.modules.conv.ConvTranspose3d": (
        lambda: nn.ConvTranspose3d(4, 6, 3),
        [(2, 4, 4, 5, 4)],
    ),
    "torch.nn.modules.rnn.LSTM": (lambda: nn.LSTM(5, 4, 2, bidirectional=True), [(3, 2, 5)]),
    "torch.nn.modules.rnn.GRU": (lambda: nn.GRU(5, 4, batch_first=True), [(3, 2, 5)]),
    "torch.nn.modules.rnn.RNN": (lambda: nn.RNN(5, 4, bias=False), [(3, 2, 5), (1, 2, 4)]),
    "torch.nn.modules.rnn.LSTMCell": (lambda: nn.LSTMCell(5, 4), [(2, 5)]),
    "torch.nn.modules.rnn.GRUCell": (lambda: nn.GRUCell(5, 4), [(2, 5), (2, 4)]),
    "torch.nn.modules.rnn.RNNCell": (lambda: nn.RNNCell(5, 4), [(2, 5), (2, 4)]),
    "torch.nn.modules.activation.MultiheadAttention": (
        lambda: nn.MultiheadAttention(6, 2, batch_first=True),
        [(3, 4, 6), (3, 5, 6), (3, 5, 6)],
    ),
    "bitcycle.matmul.MatMul": (bc.MatMul, [(2, 3, 4), (2, 4, 5)]),
}


def _pair(name: str) -> tuple[nn.Module, QuantizedLayer, list[Tensor]]:
    torch.manual_seed(0)
    make, shapes = EXAMPLES[name]
    layer = make()
    converted = bc.quantize_model(copy.deepcopy(layer))
    assert isinstance(converted, QuantizedLayer)
    return layer, converted, [torch.randn(shape) for shape in shapes]


def _run(layer: nn.Module, inputs: list[Tensor]) -> Tensor:
    """The output; recurrent layers return their states beside it."""
    output = layer(*inputs)
    while isinstance(output, tuple):
        output = output[0]
    assert isinstance(output, Tensor)
    return output


def _results(layer: nn.Module, inputs: list[Tensor]) -> list[Tensor]:
    inputs = [x.clone().requires_grad_() for x in inputs]
    output = _run(layer, inputs)
    output.square().sum().backward()
    grads = [x.grad for x in (*inputs, *layer.parameters())]
    return [output.detach(), *(grad for grad in grads if grad is not None)]


def test_every_registered_layer_has_an_example() -> None:
    ours = ("torch.nn.", "bitcycle.")  # those of other packages: tests/contracts/test_layers.py
    assert set(EXAMPLES) == {name for name in LAYERS.names() if name.startswith(ours)}


@pytest.mark.parametrize("precision", ["fp32", "w24a32e24", "g8"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_layer_without_bits_is_bit_identical_to_its_float_parent(
    name: str, training: bool, precision: str
) -> None:
    layer, converted, inputs = _pair(name)
    bc.set_precision(converted, precision)
    layer.train(training)
    converted.train(training)
    expected, actual = _results(layer, inputs), _results(converted, inputs)
    assert len(actual) == 1 + len(inputs) + len(list(layer.parameters()))
    for ours, theirs in zip(actual, expected, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_layer_that_had_bits_is_float_again_without(name: str) -> None:
    layer, converted, inputs = _pair(name)
    bc.set_precision(converted, "w3a3e3")
    quantized = _run(converted, inputs)
    bc.set_precision(converted, "fp32")
    assert not torch.equal(quantized, _run(layer, inputs))
    assert torch.equal(_run(converted, inputs), _run(layer, inputs))


@pytest.mark.parametrize("name", EXAMPLES)
def test_without_bits_nothing_is_observed_and_nothing_is_written(name: str) -> None:
    _, converted, inputs = _pair(name)
    before = [(b, b._version) for b in converted.buffers()]
    output = _run(converted, inputs)
    if output.requires_grad:
        output.sum().backward()
    assert [(b, b._version) for b in converted.buffers()] == before
    assert not converted.is_observed


# torch's own recurrent layers have no bfloat16 on some processors, and mix dtypes on others
@pytest.mark.parametrize("name", [name for name in EXAMPLES if ".rnn." not in name])
def test_full_precision_follows_an_ambient_autocast_like_the_parent(name: str) -> None:
    layer, converted, inputs = _pair(name)
    with torch.autocast("cpu", torch.bfloat16):
        expected, actual = _run(layer, inputs), _run(converted, inputs)
    assert actual.dtype == expected.dtype == torch.bfloat16
    assert torch.equal(actual, expected)
