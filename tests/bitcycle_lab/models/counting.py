"""Counts parameters and multiplications by watching one forward pass."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from bitcycle_lab.models import Model


def num_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def on_meta(build: Callable[[], Model]) -> Model:
    """The model without memory for its weights: enough to count."""
    with torch.device("meta"):
        return build()


def count_macs(model: Model) -> int:
    """Of all convolutions and linear layers, for one sample through a model on the meta device."""
    macs = 0

    def add(module: nn.Module, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        nonlocal macs
        if isinstance(module, nn.Conv2d):
            k2 = module.kernel_size[0] * module.kernel_size[1]
            macs += output.numel() * k2 * module.in_channels // module.groups
        elif isinstance(module, nn.Linear):
            macs += output.numel() * module.in_features

    for module in model.modules():
        module.register_forward_hook(add)
    model.eval()(*model.example_inputs(batch_size=1, device="meta"))
    return macs
