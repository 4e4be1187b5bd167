"""Converted transposed convolutions against the oracle."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from .layers import assert_products_close, convert, describe, expected_products, run

INPUTS = {
    nn.ConvTranspose1d: (2, 4, 7),
    nn.ConvTranspose2d: (2, 4, 5, 4),
    nn.ConvTranspose3d: (2, 4, 3, 4, 3),
}
SHAPES: list[tuple[type[nn.Module], dict[str, Any]]] = [
    (nn.ConvTranspose1d, {}),
    (nn.ConvTranspose1d, {"stride": 3, "padding": 2, "output_padding": 2, "groups": 2}),
    (nn.ConvTranspose2d, {}),
    (nn.ConvTranspose2d, {"bias": False}),
    (nn.ConvTranspose2d, {"stride": 2, "padding": 1, "output_padding": 1}),
    (nn.ConvTranspose2d, {"kernel_size": (2, 4), "stride": (1, 2), "padding": (0, 1)}),
    (nn.ConvTranspose2d, {"dilation": 2, "padding": 1}),
    (nn.ConvTranspose2d, {"groups": 2}),
    (nn.ConvTranspose2d, {"out_channels": 4, "groups": 4, "stride": 2}),
    (nn.ConvTranspose2d, {"out_channels": 8, "groups": 4}),
    (nn.ConvTranspose3d, {"stride": 2, "output_padding": 1, "groups": 2}),
]


def _make(kind: type[nn.Module], options: dict[str, Any]) -> nn.Module:
    torch.manual_seed(0)
    return kind(4, **{"out_channels": 6, "kernel_size": 3, **options})


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize(("kind", "options"), SHAPES)
def test_the_three_products_equal_the_oracle(
    kind: type[nn.Module], options: dict[str, Any], bits: int
) -> None:
    layer = convert(_make(kind, options), f"w{bits}a{bits}e{bits}")
    x = torch.randn(INPUTS[kind])
    e = torch.randn_like(layer(x))
    expected = expected_products(layer, x, e, weight=bits, act=bits, error=bits)
    assert_products_close(run(layer, x, e), expected)


def test_an_output_channel_has_a_grid_of_its_own() -> None:
    layer = convert(nn.ConvTranspose1d(2, 2, 1, groups=1, bias=False), "w2")
    with torch.no_grad():  # (Cin, Cout, 1): columns are the output channels
        layer.weight.copy_(torch.tensor([[[0.0], [0.0]], [[3.0], [300.0]]]))
    output = layer(torch.eye(2).unsqueeze(0))
    assert output[0].tolist() == [[0.0, 3.0], [0.0, 300.0]]


@pytest.mark.parametrize("size", [9, 10])
def test_an_output_size_is_taken_when_called(size: int) -> None:
    layer = convert(_make(nn.ConvTranspose1d, {"stride": 2, "padding": 3, "groups": 2}), "w4a4e4")
    x = torch.randn(2, 4, 7)
    result = run(layer, x, torch.ones(2, 6, size), output_size=[size])
    oracle = describe(layer)
    oracle.output_padding = (size - 9,)  # (7 - 1) * 2 - 2 * 3 + 2 + 1 = 9
    layer.output_padding = oracle.output_padding
    expected = expected_products(
        layer, x, torch.ones(2, 6, size), weight=4, act=4, error=4
    )  # fmt: skip
    assert_products_close(result, expected)


def test_an_output_size_out_of_reach_is_torch_s_error() -> None:
    layer = convert(_make(nn.ConvTranspose1d, {"stride": 2}), "w4a4e4")
    with pytest.raises(ValueError, match="requested an output size"):
        layer(torch.randn(2, 4, 7), output_size=[99])


@pytest.mark.parametrize("kind", INPUTS)
def test_an_input_without_a_batch_is_a_batch_of_one(kind: type[nn.Module]) -> None:
    layer = convert(_make(kind, {"stride": 2, "output_padding": 1}), "w4a4e4")
    x = torch.randn(INPUTS[kind])[:1]
    batched, single = run(layer, x), run(layer, x[0])
    assert torch.equal(single.output, batched.output[0])
    assert torch.equal(single.grad_input, batched.grad_input[0])


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("kernel", [1, 3])
def test_channels_last_changes_nothing(kernel: int, groups: int) -> None:
    options = {"kernel_size": kernel, "out_channels": 8, "groups": groups}
    plain = convert(_make(nn.ConvTranspose2d, options), "w4a4e4")
    layout = torch.channels_last
    turned = convert(_make(nn.ConvTranspose2d, options).to(memory_format=layout), "w4a4e4")
    x = torch.randn(2, 4, 5, 4)
    e = torch.randn_like(plain(x))
    result = run(turned, x.to(memory_format=layout), e.to(memory_format=layout))
    assert_products_close(result, run(plain, x, e))
