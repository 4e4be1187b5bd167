"""Converted convolutions, their paddings and transposed ones against the oracle."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from .layers import assert_products_close, convert, describe, expected_products, run

BITS = range(2, 9)
INPUTS = {nn.Conv1d: (2, 4, 11), nn.Conv2d: (2, 4, 7, 6), nn.Conv3d: (2, 4, 5, 4, 6)}
SHAPES: list[tuple[type[nn.Module], dict[str, Any]]] = [
    (nn.Conv1d, {}),
    (nn.Conv1d, {"stride": 2, "padding": 2, "dilation": 2, "groups": 2}),
    (nn.Conv2d, {}),
    (nn.Conv2d, {"bias": False}),
    (nn.Conv2d, {"kernel_size": 1}),
    (nn.Conv2d, {"kernel_size": (1, 3), "stride": (2, 1), "padding": (0, 2)}),
    (nn.Conv2d, {"stride": 2, "padding": 1}),
    (nn.Conv2d, {"stride": 3, "padding": 2}),
    (nn.Conv2d, {"dilation": (2, 1), "padding": 2}),
    (nn.Conv2d, {"groups": 2, "padding": 1}),
    (nn.Conv2d, {"out_channels": 8, "groups": 4, "padding": 1}),  # depthwise, two per channel
    (nn.Conv3d, {"padding": 1}),
    (nn.Conv3d, {"kernel_size": (2, 1, 3), "stride": (1, 2, 2), "groups": 2, "bias": False}),
]


def _make(kind: type[nn.Module], options: dict[str, Any], seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return kind(4, **{"out_channels": 6, "kernel_size": 3, **options})


@pytest.mark.parametrize(("kind", "options"), SHAPES)
def test_the_three_products_equal_the_oracle_in_training(
    kind: type[nn.Module], options: dict[str, Any]
) -> None:
    for bits in (2, 8) if options else BITS:
        layer = convert(_make(kind, options), f"w{bits}a{bits}e{bits}")
        x = torch.randn(INPUTS[kind])
        e = torch.randn_like(layer(x))
        expected = expected_products(layer, x, e, weight=bits, act=bits, error=bits)
        assert_products_close(run(layer, x, e), expected)


def test_the_three_products_equal_the_oracle_in_evaluation_on_the_running_range() -> None:
    for bits in (2, 8):
        for kind in INPUTS:
            layer = convert(_make(kind, {"padding": 1}), f"w{bits}a{bits}e{bits}")
            shape = INPUTS[kind]
            layer(torch.linspace(-1.0, 0.5, math.prod(shape)).view(shape))
            layer.eval()
            x = torch.randn(shape)  # reaches beyond the range: clips
            e = torch.randn_like(layer(x))
            expected = expected_products(
                layer, x, e, weight=bits, act=bits, error=bits, within=(-1.0, 0.5)
            )
            assert_products_close(run(layer, x, e), expected)


def test_every_role_has_bits_of_its_own() -> None:
    for precision, bits in (
        ("w3", {"weight": 3, "act": None, "error": None}),
        ("a3", {"weight": None, "act": 3, "error": None}),
        ("e3", {"weight": None, "act": None, "error": 3}),
        ("w2a5e8", {"weight": 2, "act": 5, "error": 8}),
        ("w8a2e3", {"weight": 8, "act": 2, "error": 3}),
        ("w16a12e20", {"weight": 16, "act": 12, "error": 20}),
        ("w4a24e32", {"weight": 4, "act": None, "error": None}),
    ):
        layer = convert(_make(nn.Conv2d, {"stride": 2, "padding": 1}), precision)
        x = torch.randn(2, 4, 7, 6)
        e = torch.randn_like(layer(x))
        assert_products_close(run(layer, x, e), expected_products(layer, x, e, **bits))


def test_the_error_of_the_bias_is_not_quantized() -> None:
    layer = convert(_make(nn.Conv2d, {}), "w2a2e2")
    x = torch.randn(2, 4, 7, 6)
    e = torch.randn_like(layer(x))
    run(layer, x, e)
    assert layer.bias.grad is not None
    torch.testing.assert_close(layer.bias.grad, e.sum((0, 2, 3)))


def test_an_input_without_a_batch_is_a_batch_of_one() -> None:
    for kind in INPUTS:
        layer = convert(_make(kind, {"padding": 1}), "w4a4e4")
        x = torch.randn(INPUTS[kind])[:1]
        batched, single = run(layer, x), run(layer, x[0])
        assert torch.equal(single.output, batched.output[0])
        assert torch.equal(single.grad_input, batched.grad_input[0])
        torch.testing.assert_close(single.grad_weight, batched.grad_weight)


def test_channels_last_changes_nothing_but_the_noise_and_is_kept() -> None:
    for kind in (nn.Conv2d, nn.Conv3d):
        layout = torch.channels_last if kind is nn.Conv2d else torch.channels_last_3d
        turned = _make(kind, {"padding": 1}).to(memory_format=layout)
        turned = convert(turned, "w4a4e4", error_rounding="nearest")
        plain = convert(_make(kind, {"padding": 1}), "w4a4e4", error_rounding="nearest")
        x = torch.randn(INPUTS[kind])
        e = torch.randn(INPUTS[kind][0], 6, *INPUTS[kind][2:])
        result = run(turned, x.to(memory_format=layout), e.to(memory_format=layout))
        assert_products_close(result, run(plain, x, e))
        for tensor in (result.output, result.grad_input):
            assert tensor.is_contiguous(memory_format=layout)


def test_a_strided_input_and_error_change_nothing() -> None:
    layer = convert(_make(nn.Conv1d, {}), "w4a4e4")
    x = torch.randn(2, 11, 4).transpose(1, 2)
    e = torch.randn(1, 1, 9).expand(2, 6, 9)
    expected = run(layer, x.contiguous(), e.contiguous())
    assert_products_close(run(layer, x, e), expected)


def test_an_empty_batch_gives_empty_outputs_and_zero_gradients() -> None:
    layer = convert(_make(nn.Conv2d, {}), "w4a4e4")
    result = run(layer, torch.randn(0, 4, 7, 6))
    assert result.output.shape == (0, 6, 5, 4)
    assert result.grad_input.shape == (0, 4, 7, 6)
    assert not result.grad_weight.any()
    assert not layer.is_observed


PADDED = {nn.Conv1d: (2, 3, 9), nn.Conv2d: (2, 3, 6, 5), nn.Conv3d: (2, 3, 4, 5, 4)}
MODES = ("zeros", "reflect", "replicate", "circular")


def _check(kind: type[nn.Module], bits: int, **options: Any) -> None:
    torch.manual_seed(0)
    layer = convert(kind(3, 4, **{"kernel_size": 3, **options}), f"w{bits}a{bits}e{bits}")
    x = torch.randn(PADDED[kind]) + 0.3  # 0 is off the grid: a padding of zeros must not follow it
    e = torch.randn_like(layer(x))
    expected = expected_products(layer, x, e, weight=bits, act=bits, error=bits)
    assert_products_close(run(layer, x, e), expected)


def test_every_padding_mode_equals_the_oracle() -> None:
    for bits in (2, 8):
        for mode in MODES:
            for kind in PADDED:
                _check(kind, bits, padding=2, padding_mode=mode, stride=2)


def test_same_pads_even_kernels_more_at_the_end() -> None:
    for mode in MODES:
        for kernel in (1, 2, 3, 4):
            for kind in PADDED:
                _check(kind, 4, kernel_size=kernel, padding="same", padding_mode=mode)


def test_same_pads_each_dimension_by_its_own_kernel_and_dilation() -> None:
    for mode in MODES:
        _check(
            nn.Conv2d, 4, kernel_size=(2, 3), dilation=(3, 1), padding="same", padding_mode=mode
        )  # fmt: skip


def test_valid_pads_nothing() -> None:
    for mode in MODES:
        _check(nn.Conv2d, 4, padding="valid", padding_mode=mode)


def test_padding_works_without_a_batch() -> None:
    for mode in MODES:
        for kind in PADDED:
            torch.manual_seed(0)
            options = {"kernel_size": 2, "padding": "same", "padding_mode": mode}
            layer = convert(kind(3, 4, **options), "w4a4e4")
            x = torch.randn(PADDED[kind])[:1]
            assert torch.equal(run(layer, x[0]).output, run(layer, x).output[0])


def test_the_running_range_does_not_see_a_padding_of_zeros() -> None:
    layer = convert(nn.Conv2d(3, 4, 3, padding=1), "w4a4e4")
    layer(torch.linspace(1.0, 2.0, 90).view(1, 3, 6, 5))
    assert layer.act_range.tolist() == [[1.0, 1.0, 1.0]]  # observed, minimum 1, range 1


TRANSPOSED_INPUTS = {
    nn.ConvTranspose1d: (2, 4, 7),
    nn.ConvTranspose2d: (2, 4, 5, 4),
    nn.ConvTranspose3d: (2, 4, 3, 4, 3),
}
TRANSPOSED: list[tuple[type[nn.Module], dict[str, Any]]] = [
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


@pytest.mark.parametrize(("kind", "options"), TRANSPOSED)
def test_transposed_products_equal_the_oracle(
    kind: type[nn.Module], options: dict[str, Any]
) -> None:
    for bits in (2, 8) if options else BITS:
        layer = convert(_make(kind, options), f"w{bits}a{bits}e{bits}")
        x = torch.randn(TRANSPOSED_INPUTS[kind])
        e = torch.randn_like(layer(x))
        expected = expected_products(layer, x, e, weight=bits, act=bits, error=bits)
        assert_products_close(run(layer, x, e), expected)


def test_an_output_channel_has_a_grid_of_its_own() -> None:
    layer = convert(nn.ConvTranspose1d(2, 2, 1, groups=1, bias=False), "w2")
    with torch.no_grad():  # (Cin, Cout, 1): columns are the output channels
        layer.weight.copy_(torch.tensor([[[0.0], [0.0]], [[3.0], [300.0]]]))
    output = layer(torch.eye(2).unsqueeze(0))
    assert output[0].tolist() == [[0.0, 3.0], [0.0, 300.0]]


def test_an_output_size_is_taken_when_called() -> None:
    for size in (9, 10):
        layer = convert(
            _make(nn.ConvTranspose1d, {"stride": 2, "padding": 3, "groups": 2}), "w4a4e4"
        )
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


def test_a_transposed_input_without_a_batch_is_a_batch_of_one() -> None:
    for kind in TRANSPOSED_INPUTS:
        layer = convert(_make(kind, {"stride": 2, "output_padding": 1}), "w4a4e4")
        x = torch.randn(TRANSPOSED_INPUTS[kind])[:1]
        batched, single = run(layer, x), run(layer, x[0])
        assert torch.equal(single.output, batched.output[0])
        assert torch.equal(single.grad_input, batched.grad_input[0])


def test_channels_last_changes_nothing_of_a_transposed_convolution() -> None:
    for groups in (1, 2, 4):
        for kernel in (1, 3):
            options = {"kernel_size": kernel, "out_channels": 8, "groups": groups}
            plain = convert(_make(nn.ConvTranspose2d, options), "w4a4e4")
            layout = torch.channels_last
            turned = convert(_make(nn.ConvTranspose2d, options).to(memory_format=layout), "w4a4e4")
            x = torch.randn(2, 4, 5, 4)
            e = torch.randn_like(plain(x))
            result = run(turned, x.to(memory_format=layout), e.to(memory_format=layout))
            assert_products_close(result, run(plain, x, e))
