"""Small converted models with observed ranges."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import bitcycle as bc


def ready(model: nn.Module, x: Tensor, bits: str = "w8a8", quantizer: Any = "sbm") -> nn.Module:
    """Converted, at these bits, ranges observed on `x`, in evaluation mode."""
    bc.quantize_model(model, quantizer)
    bc.set_precision(model, bits)
    return bc.calibrate(model, [x]).eval()


def conv_net() -> nn.Sequential:
    """(N, 2, 6, 6) -> (N, 3), with padding, whose zeros are no code of a real offset."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 5, 3, stride=2, groups=1), nn.ReLU(), nn.Flatten(), nn.Linear(20, 3),
    )  # fmt: skip


def images(num: int = 4) -> Tensor:
    """For `conv_net`."""
    return torch.randn(num, 2, 6, 6, generator=torch.Generator().manual_seed(1))


def encoder() -> nn.TransformerEncoderLayer:
    """(N, T, 8) -> (N, T, 8)."""
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)


def tokens() -> Tensor:
    """For `encoder`."""
    return torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1))


def assert_same(output: Tensor, expected: Tensor, rtol: float = 1e-4) -> None:
    """Most samples agree to rounding, and none differs by more than a code or two.

    With a whole zero point an input as near to halfway between two codes as float32 can tell may
    take the other one: x / s + z and (x + z s) / s are rounded differently.
    """
    largest = expected.abs().max()
    worst = (output - expected).abs().flatten(1).amax(1) / largest  # per sample
    assert worst.median() <= rtol, worst
    assert worst.max() <= 0.01, worst
