"""Small models and a naive layer that the tests of the top-level modules share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bitcycle as bc
from tests.bitcycle import naive


class Net(nn.Module):
    """(N, 2, 6, 6) -> (N, 3): convolution, BatchNorm, dropout and two Linears."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv(x))).mean((2, 3))
        return self.head(self.drop(x))


class Attention(nn.Module):
    """(N, T, 4) -> (N, T, 4): self-attention whose two products have names."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 12)
        self.scores, self.mix = bc.MatMul(), bc.MatMul()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)  # (N, T, 4) each
        return self.mix(self.scores(q, k.transpose(1, 2)).softmax(-1), v)


class Trilinear(nn.Module):
    """(N, 4) -> (N, 2) by an operator that has no MAC formula."""

    def forward(self, x: Tensor) -> Tensor:
        return F.bilinear(x, x, torch.ones(2, 4, 4))


def net(seed: int = 0) -> Net:
    """A float `Net` with fixed weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Net()


def linears(*widths: int, seed: int = 0) -> nn.Sequential:
    """Linears of these widths, one after the other."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(*(nn.Linear(a, b) for a, b in zip(widths, widths[1:], strict=False)))


def randn(*shape: int, seed: int = 1) -> Tensor:
    """Normal numbers of a fixed seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def naive_linear(x: Tensor, linear: nn.Linear, bits: int) -> Tensor:
    """sbm: weights on a grid per row, the input on one grid of its own range."""
    weight = naive.per_channel(linear.weight, bits)
    return F.linear(naive.per_tensor(x, bits), weight, linear.bias)
