"""Counts parameters, multiplications and normalized elements by watching one forward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from bitcycle.models import Model


@dataclass
class Counts:
    macs: int = 0  # of all convolutions and linear layers, per sample
    batchnorm_outputs: int = 0  # elements, per sample

    @property
    def paper_cost(self) -> int:
        """K of the paper's cost: MACs plus two operations per batch-normalized element."""
        return self.macs + 2 * self.batchnorm_outputs


def num_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def on_meta(build: Callable[[], Model]) -> Model:
    """The model without memory for its weights: enough to count."""
    with torch.device("meta"):
        return build()


def count(model: Model) -> Counts:
    """One sample through a model on the meta device."""
    counts = Counts()

    def add(module: nn.Module, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        if isinstance(module, nn.Conv2d):
            k2 = module.kernel_size[0] * module.kernel_size[1]
            counts.macs += output.numel() * k2 * module.in_channels // module.groups
        elif isinstance(module, nn.Linear):
            counts.macs += output.numel() * module.in_features
        elif isinstance(module, nn.BatchNorm2d):
            counts.batchnorm_outputs += output.numel()

    for module in model.modules():
        module.register_forward_hook(add)
    model.eval()(*model.example_inputs(batch_size=1, device="meta"))
    return counts


def millions(number: int, decimals: int) -> str:
    return f"{number / 1e6:.{decimals}f}"
