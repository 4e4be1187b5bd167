"""A float module and its inputs for every registered layer: what the contracts are tried on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import bitcycle as bc


@dataclass(frozen=True)
class Example:
    """How to make the float module, and the shapes of its inputs and its output."""

    make: Callable[[], nn.Module]
    inputs: tuple[tuple[int, ...], ...]
    output: tuple[int, ...]

    def module(self) -> nn.Module:
        """The float module with fixed weights."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return self.make()

    def tensors(self, seed: int = 1) -> list[Tensor]:
        """Inputs of a fixed seed that want gradients."""
        generator = torch.Generator().manual_seed(seed)
        return [torch.randn(shape, generator=generator).requires_grad_() for shape in self.inputs]


# registered name -> example; a new layer needs a line here
EXAMPLES = {
    "torch.nn.modules.linear.Linear": Example(lambda: nn.Linear(5, 3), ((4, 5),), (4, 3)),
    "torch.nn.modules.conv.Conv1d": Example(
        lambda: nn.Conv1d(4, 6, 3, stride=2, groups=2), ((2, 4, 9),), (2, 6, 4)
    ),
    "torch.nn.modules.conv.Conv2d": Example(
        lambda: nn.Conv2d(3, 4, 3, padding=1), ((2, 3, 6, 5),), (2, 4, 6, 5)
    ),
    "torch.nn.modules.conv.Conv3d": Example(
        lambda: nn.Conv3d(2, 3, 2, dilation=2), ((2, 2, 4, 4, 4),), (2, 3, 2, 2, 2)
    ),
    "torch.nn.modules.conv.ConvTranspose1d": Example(
        lambda: nn.ConvTranspose1d(4, 6, 3, stride=2, groups=2), ((2, 4, 5),), (2, 6, 11)
    ),
    "torch.nn.modules.conv.ConvTranspose2d": Example(
        lambda: nn.ConvTranspose2d(3, 4, 3, padding=1), ((2, 3, 4, 4),), (2, 4, 4, 4)
    ),
    "torch.nn.modules.conv.ConvTranspose3d": Example(
        lambda: nn.ConvTranspose3d(2, 3, 2), ((2, 2, 3, 3, 3),), (2, 3, 4, 4, 4)
    ),
    "bitcycle.matmul.MatMul": Example(bc.MatMul, ((2, 4, 5), (2, 5, 3)), (2, 4, 3)),
}
