"""A small graph with everything in it, and dense oracles of what is quantized on it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import bitcycle as bc
from bitcycle.quantizers import SBM
from tests.bitcycle import naive

NUM_NODES = 7
# 6 receives nothing and sends nothing; 2 has a loop; 0 -> 1 and 1 -> 0 are two edges
EDGES = torch.tensor([[0, 1, 1, 2, 2, 3, 4, 5, 0, 4], [1, 0, 2, 2, 3, 4, 5, 3, 5, 1]])


def features(num_features: int, *, num_nodes: int = NUM_NODES, seed: int = 1) -> Tensor:
    """Normal features whose spread differs widely between nodes."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_nodes, num_features, generator=generator)
    return x * torch.logspace(-2, 1, num_nodes)[:, None]


def dense(edges: Tensor, weights: Tensor | None = None, num_nodes: int = NUM_NODES) -> Tensor:
    """A[i, j]: the weight of the edge from j to i."""
    matrix = torch.zeros(num_nodes, num_nodes, dtype=torch.float64)
    for e, (j, i) in enumerate(edges.t().tolist()):
        matrix[i, j] = 1.0 if weights is None else float(weights[e])
    return matrix


def convert(layer: nn.Module, aggregation: str, precision: str, **rules: Any) -> nn.Module:
    """The layer converted with sbm and nearest error rounding."""
    quantizer = SBM(error_rounding="nearest", aggregation=aggregation, **rules)
    bc.quantize_model(layer, quantizer)
    bc.set_precision(layer, precision)
    return layer


def per_node(x: Tensor, bits: int | None) -> Tensor:
    """A grid for every row, between its own extremes; in double for products."""
    return naive.per_channel(x.float(), bits).double()


def per_error(e: Tensor, bits: int | None) -> Tensor:
    """One grid for the whole error."""
    return naive.per_tensor(e.float(), bits).double()


def straight(x: Tensor, bits: int | None) -> Tensor:
    """x on the grid of each node, with the gradient of x."""
    on_grid = naive.per_channel(x.detach().flatten(1), bits).view_as(x)
    return x + (on_grid - x.detach())


def with_error(y: Tensor, bits: int | None) -> Tensor:
    """y, whose error is put on a grid when it arrives."""
    y = y * 1.0
    y.register_hook(lambda e: naive.per_tensor(e, bits))
    return y


def oracle_linear(x: Tensor, weight: Tensor, bits: tuple[int | None, int | None, int | None]):
    """x W' with per-node features, per-row weights and the error on its grid; differentiable."""
    w, a, e = bits
    on_grid = naive.per_channel(weight.detach(), w)
    weight = weight + (on_grid - weight.detach())
    return with_error(straight(x, a) @ weight.t(), e)


def run(layer: nn.Module, *args: Any, e: Tensor | None = None) -> dict[str, Tensor]:
    """The output and every gradient; 'x' is the first argument's."""
    x, *others = args
    x = x.detach().clone().requires_grad_()
    layer.zero_grad()
    output = layer(x, *others)
    output.backward(fixed_error(output) if e is None else e)
    grads = {name: p.grad.clone() for name, p in layer.named_parameters() if p.grad is not None}
    return {"output": output.detach(), "x": x.grad, **grads}


def fixed_error(output: Tensor) -> Tensor:
    """The error that `run` sends back."""
    generator = torch.Generator().manual_seed(2)
    return torch.randn(output.shape, generator=generator)


FOLDED = 5e-5  # of products that round one operand to 16 bits


def assert_close(
    ours: dict[str, Tensor], expected: dict[str, Tensor], *, tolerance: float = FOLDED
) -> None:
    """Equal but for the rounding of products, relative to each tensor's largest entry."""
    assert ours.keys() == expected.keys()
    for name, theirs in expected.items():
        scale = float(theirs.abs().max())
        torch.testing.assert_close(
            ours[name].double(), theirs.double(), rtol=0, atol=tolerance * scale + 1e-12,
            msg=lambda m, n=name: f"{n}: {m}",
        )  # fmt: skip
