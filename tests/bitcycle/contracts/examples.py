"""A float module and its inputs for every registered layer: what the contracts are tried on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bitcycle as bc


@dataclass(frozen=True)
class Example:
    """How to make the float module, and the shapes of its inputs and its output.

    An input that is not drawn, such as the edges of a graph, is given as it is.
    """

    make: Callable[[], nn.Module]
    inputs: tuple[tuple[int, ...] | Tensor, ...]
    output: tuple[int, ...]

    def module(self) -> nn.Module:
        """The float module with fixed weights."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return self.make()

    def tensors(self, seed: int = 1) -> list[Tensor]:
        """Inputs of a fixed seed that want gradients."""
        generator = torch.Generator().manual_seed(seed)
        return [
            each
            if isinstance(each, Tensor)
            else torch.randn(each, generator=generator).requires_grad_()
            for each in self.inputs
        ]


def first_result(module: nn.Module, tensors: list[Tensor]) -> Tensor:
    """What the module returns; of recurrent layers, which return states too, the output."""
    results = module(*tensors)
    while isinstance(results, tuple):
        results = results[0]
    assert isinstance(results, Tensor)
    return results


def map_floats(function: Callable[[Tensor], Tensor], tensors: list[Tensor]) -> list[Tensor]:
    """The inputs with this done to all but numbers of nodes."""
    return [function(x) if x.is_floating_point() else x for x in tensors]


@contextmanager
def naming(entry: str) -> Iterator[None]:
    """What fails in a loop over entries says at which it failed."""
    try:
        yield
    except Exception as error:
        error.add_note(f"at {entry}")
        raise


def _geometric() -> Any:
    return pytest.importorskip("torch_geometric.nn")


def _conv1d() -> nn.Module:
    """Its own initial weights are too small for grids with a fixed step."""
    module: nn.Module = pytest.importorskip("transformers.pytorch_utils").Conv1D(3, 5)
    nn.init.normal_(module.weight)
    return module


_EDGES = torch.tensor([[0, 1, 1, 2, 3, 4, 0], [1, 0, 2, 3, 4, 0, 3]])

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
    "torch.nn.modules.rnn.LSTM": Example(
        lambda: nn.LSTM(5, 4, num_layers=2, bidirectional=True), ((3, 2, 5),), (3, 2, 8)
    ),
    "torch.nn.modules.rnn.GRU": Example(
        lambda: nn.GRU(5, 4, batch_first=True), ((2, 3, 5), (1, 2, 4)), (2, 3, 4)
    ),
    "torch.nn.modules.rnn.RNN": Example(lambda: nn.RNN(5, 4), ((3, 2, 5),), (3, 2, 4)),
    "torch.nn.modules.rnn.LSTMCell": Example(lambda: nn.LSTMCell(5, 4), ((3, 5),), (3, 4)),
    "torch.nn.modules.rnn.GRUCell": Example(lambda: nn.GRUCell(5, 4), ((3, 5), (3, 4)), (3, 4)),
    "torch.nn.modules.rnn.RNNCell": Example(lambda: nn.RNNCell(5, 4), ((3, 5), (3, 4)), (3, 4)),
    "torch_geometric.nn.dense.linear.Linear": Example(
        lambda: _geometric().Linear(5, 3), ((4, 5),), (4, 3)
    ),
    "torch_geometric.nn.conv.gcn_conv.GCNConv": Example(
        lambda: _geometric().GCNConv(5, 4), ((5, 5), _EDGES), (5, 4)
    ),
    "torch_geometric.nn.conv.sage_conv.SAGEConv": Example(
        lambda: _geometric().SAGEConv(5, 4), ((5, 5), _EDGES), (5, 4)
    ),
    "torch_geometric.nn.conv.gat_conv.GATConv": Example(
        lambda: _geometric().GATConv(5, 3, heads=2), ((5, 5), _EDGES), (5, 6)
    ),
    "torch_geometric.nn.conv.gin_conv.GINConv": Example(
        lambda: _geometric().GINConv(nn.Linear(5, 4)), ((5, 5), _EDGES), (5, 4)
    ),
    "torch.nn.modules.activation.MultiheadAttention": Example(
        lambda: nn.MultiheadAttention(6, 2), ((4, 3, 6), (5, 3, 6), (5, 3, 6)), (4, 3, 6)
    ),
    "transformers.pytorch_utils.Conv1D": Example(_conv1d, ((4, 5),), (4, 3)),
    "bitcycle.matmul.MatMul": Example(bc.MatMul, ((2, 4, 5), (2, 5, 3)), (2, 4, 3)),
}
