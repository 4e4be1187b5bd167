"""Small models of every type of layer, and one step of their training on a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

import bitcycle as bc
from bitcycle.formats.catalogue import list_formats
from bitcycle.nn.control import advance_clocks
from bitcycle.nn.layer import QuantizedLayer
from bitcycle.quantizers.base import QUANTIZERS

EDGES = torch.tensor([[0, 1, 1, 2, 3, 4], [1, 0, 2, 3, 4, 0]])


class Convolutions(nn.Module):
    """A strided convolution, one in groups, a depthwise one, and BatchNorms."""

    def __init__(self) -> None:
        super().__init__()
        self.strided, self.norm = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8)
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=2, bias=False)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.strided(x)))
        return self.depthwise(F.relu(self.grouped(x))).mean((2, 3))


class Attention(nn.Module):
    """An embedding, attention and a product of two activations."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.product, self.head = bc.MatMul(), nn.Linear(16, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)  # (N, T, 16)
        x = self.attention(x, x, x, need_weights=False)[0]
        return self.head(self.product(self.product(x, x.transpose(1, 2)), x))


class Recurrent(nn.Module):
    """An LSTM and a linear layer on its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0])


class Graph(nn.Module):
    """A graph convolution on five nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = GCNConv(6, 4, cached=True)  # it reads the device to add loops, once
        self.register_buffer("edges", EDGES, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x, self.edges)


class Case(NamedTuple):
    """A model and its input."""

    model: Callable[[], nn.Module]
    inputs: Callable[[], Tensor]


MODELS = {
    "linear": Case(
        lambda: nn.Sequential(nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 16)),
        lambda: torch.randn(20, 32),
    ),
    "convolutions": Case(Convolutions, lambda: torch.randn(4, 3, 8, 8)),
    "attention": Case(Attention, lambda: torch.randint(11, (3, 7))),
    "recurrent": Case(Recurrent, lambda: torch.randn(3, 4, 6)),
    "graph": Case(Graph, lambda: torch.randn(5, 6)),
}


def make(
    name: str, device: str, quantizer: Any = "sbm", kernel: str = "simulate"
) -> tuple[nn.Module, Tensor]:
    """A converted model and its input, the same on every device."""
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model, inputs = MODELS[name].model(), MODELS[name].inputs()
    if isinstance(quantizer, str):
        quantizer = QUANTIZERS[quantizer](first_last="quantized")
    return bc.quantize_model(model.to(device), quantizer, kernel=kernel), inputs.to(device)


def precisions(quantizer: str) -> dict[str, str]:
    """A precision of each kind that a quantizer takes: integers, and a format of each other."""
    kinds = QUANTIZERS[quantizer].kinds
    formats = {each.kind: each.name for each in list_formats() if each.kind in kinds}
    return {"integer": "FW8/BW8", **{kind: f"FW{n}/BW{n}" for kind, n in formats.items()}}


def set_step(model: nn.Module, step: int) -> None:
    """The step of the noise, as a scheduler sets it."""
    advance_clocks([each for each in model.modules() if isinstance(each, QuantizedLayer)], step)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
    """One step; the loss."""
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """SGD with momentum."""
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters, gradients and running ranges, on the host."""
    state = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    grads = {f"{n}.grad": p.grad.cpu() for n, p in model.named_parameters() if p.grad is not None}
    return {**state, **grads}


def assert_close(ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float) -> None:
    """Equal up to a share of each tensor's norm, or of a hundredth if that is smaller."""
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        difference = float((value.double() - theirs[name].double()).norm())
        norm = max(float(theirs[name].double().norm()), 1e-2)
        assert difference <= tolerance * norm, (name, difference, norm)
