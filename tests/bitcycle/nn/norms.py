"""Converted BatchNorms for the tests."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import bitcycle as bc
from bitcycle.nn.norm import QuantizedNorm
from bitcycle.quantizers import SBMFull

INPUTS = {nn.BatchNorm1d: (16, 3), nn.BatchNorm2d: (4, 3, 4, 2), nn.BatchNorm3d: (4, 3, 2, 2, 2)}


class Normed(nn.Module):
    """A BatchNorm with trained parameters, beside a layer that lets the model be converted."""

    def __init__(self, kind: type[nn.Module] = nn.BatchNorm2d, **options: object) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.norm = kind(3, **options)
        if self.norm.affine:
            with torch.no_grad():
                self.norm.weight.copy_(torch.tensor([1.0, 0.5, -0.3]))
                self.norm.bias.copy_(torch.tensor([0.0, 0.1, -0.2]))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


def convert(model: Normed, rules=None, precision: str = "FW8/BW8") -> QuantizedNorm:
    """The model's norm, converted and with bits."""
    bc.quantize_model(model, rules or SBMFull(), kernel="simulate")
    bc.set_precision(model, precision)
    assert isinstance(model.norm, QuantizedNorm)
    return model.norm
