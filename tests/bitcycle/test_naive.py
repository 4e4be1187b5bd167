"""The oracle itself: at full precision it is torch's float arithmetic."""

from __future__ import annotations

import torch
from torch import nn

from . import naive
from .nn.layers import describe, run


def test_without_bits_the_oracle_computes_torch_s_float_convolutions() -> None:
    for kind, options in (
        (nn.Conv2d, {"stride": 2, "padding": 1, "groups": 2}),
        (nn.Conv2d, {"kernel_size": (2, 3), "padding": "same", "dilation": (2, 1)}),
        (nn.Conv2d, {"padding": (2, 1), "padding_mode": "reflect"}),
        (nn.Conv2d, {"padding": (2, 1), "padding_mode": "circular"}),
        (nn.Conv2d, {"kernel_size": 4, "padding": "same", "padding_mode": "replicate"}),
        (nn.ConvTranspose2d, {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2}),
        (nn.ConvTranspose2d, {"kernel_size": (3, 2), "stride": (1, 3), "dilation": 2}),
    ):
        torch.manual_seed(0)
        layer = kind(4, 6, **{"kernel_size": 3, **options}).double()
        x = torch.randn(2, 4, 7, 6, dtype=torch.float64)
        e = torch.randn_like(layer(x))
        expected = run(layer, x, e)
        actual = describe(layer).products(x, layer.weight.detach(), layer.bias.detach(), e)
        for name in ("output", "grad_input", "grad_weight"):
            torch.testing.assert_close(getattr(actual, name), getattr(expected, name))


def test_the_oracle_rounds_half_to_even() -> None:
    x = torch.tensor([0.0, 0.5, 1.5, 2.5, 3.0])
    assert naive.per_tensor(x, 2).tolist() == [0.0, 0.0, 2.0, 2.0, 3.0]
