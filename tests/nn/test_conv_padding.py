"""Every way to pad a convolution: the values are put on the grid first, then repeated."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from .layers import assert_products_close, convert, expected_products, run

INPUTS = {nn.Conv1d: (2, 3, 9), nn.Conv2d: (2, 3, 6, 5), nn.Conv3d: (2, 3, 4, 5, 4)}
MODES = ("zeros", "reflect", "replicate", "circular")


def _check(kind: type[nn.Module], bits: int, **options: Any) -> None:
    torch.manual_seed(0)
    layer = convert(kind(3, 4, **{"kernel_size": 3, **options}), f"w{bits}a{bits}e{bits}")
    x = torch.randn(INPUTS[kind]) + 0.3  # 0 is off the grid: a padding of zeros must not follow it
    e = torch.randn_like(layer(x))
    expected = expected_products(layer, x, e, weight=bits, act=bits, error=bits)
    assert_products_close(run(layer, x, e), expected)


@pytest.mark.parametrize("bits", [2, 5, 8])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", INPUTS)
def test_every_padding_mode_equals_the_oracle(kind: type[nn.Module], mode: str, bits: int) -> None:
    _check(kind, bits, padding=2, padding_mode=mode, stride=2)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kernel", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", INPUTS)
def test_same_pads_even_kernels_more_at_the_end(
    kind: type[nn.Module], kernel: int, mode: str
) -> None:
    _check(kind, 4, kernel_size=kernel, padding="same", padding_mode=mode)


@pytest.mark.parametrize("mode", MODES)
def test_same_pads_each_dimension_by_its_own_kernel_and_dilation(mode: str) -> None:
    _check(
        nn.Conv2d, 4, kernel_size=(2, 3), dilation=(3, 1), padding="same", padding_mode=mode
    )  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_valid_pads_nothing(mode: str) -> None:
    _check(nn.Conv2d, 4, padding="valid", padding_mode=mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", INPUTS)
def test_padding_works_without_a_batch(kind: type[nn.Module], mode: str) -> None:
    torch.manual_seed(0)
    options = {"kernel_size": 2, "padding": "same", "padding_mode": mode}
    layer = convert(kind(3, 4, **options), "w4a4e4")
    x = torch.randn(INPUTS[kind])[:1]
    assert torch.equal(run(layer, x[0]).output, run(layer, x).output[0])


def test_the_running_range_does_not_see_a_padding_of_zeros() -> None:
    layer = convert(nn.Conv2d(3, 4, 3, padding=1), "w4a4e4")
    layer(torch.linspace(1.0, 2.0, 90).view(1, 3, 6, 5))
    assert layer.act_range.tolist() == [[1.0, 1.0, 1.0]]  # observed, minimum 1, range 1
