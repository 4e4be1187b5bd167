"""GCN and GraphSAGE for node classification, from PyTorch Geometric's layers."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from bitcycle.extras import require
from bitcycle_lab.models.base import Model, check_positive, cpu_generator, register_model


class GraphNet(Model):
    """Graph convolutions with layer norm, ReLU and dropout between them.

    The norm is per node (nn.LayerNorm over features), so that a node's output does not depend on
    nodes it is not connected to.
    """

    def __init__(
        self,
        make_conv: Callable[[int, int], nn.Module],
        *,
        in_features: int,
        hidden_dim: int,
        num_classes: int,
        num_layers: int,
        dropout: float,
    ) -> None:
        super().__init__()
        check_positive(
            in_features=in_features,
            hidden_dim=hidden_dim,
            num_classes=num_classes,
            num_layers=num_layers,
        )
        self.in_features = in_features
        self.num_classes = num_classes
        widths = [in_features, *[hidden_dim] * (num_layers - 1), num_classes]
        self.convs = nn.ModuleList(
            make_conv(wide_in, wide_out)
            for wide_in, wide_out in zip(widths[:-1], widths[1:], strict=True)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(hidden_dim) for _ in range(num_layers - 1))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """Features (nodes, in_features), edges (2, edges) -> logits (nodes, num_classes)."""
        for conv, norm in zip(self.convs, self.norms, strict=False):  # all but the last
            x = self.dropout(F.relu(norm(conv(x, edge_index))))  # (nodes, hidden_dim)
        logits: torch.Tensor = self.convs[-1](x, edge_index)
        return logits

    def example_inputs(
        self, batch_size: int = 16, *, seed: int = 0, device: torch.device | str = "cpu"
    ) -> tuple[torch.Tensor, ...]:
        """`batch_size` nodes with normal features; a ring in both directions, 2 edges per node."""
        x = torch.randn(batch_size, self.in_features, generator=cpu_generator(seed), device="cpu")
        nodes = torch.arange(batch_size, device="cpu")
        ring = torch.stack([nodes, (nodes + 1) % batch_size])  # (2, nodes)
        edge_index = torch.cat([ring, ring.flip(0)], dim=1)  # (2, 2 nodes)
        return x.to(device), edge_index.to(device)


@register_model(extra="graph")
def gcn(
    *,
    in_features: int = 128,
    hidden_dim: int = 512,
    num_classes: int = 40,
    num_layers: int = 3,
    dropout: float = 0.2,
) -> GraphNet:
    """Graph convolutional network: 128-512-512-40 (OGBN-Arxiv)."""
    geometric = require("torch_geometric.nn", extra="graph", purpose="graph models")
    return GraphNet(
        geometric.GCNConv,
        in_features=in_features,
        hidden_dim=hidden_dim,
        num_classes=num_classes,
        num_layers=num_layers,
        dropout=dropout,
    )


@register_model(extra="graph")
def graphsage(
    *,
    in_features: int = 100,
    hidden_dim: int = 512,
    num_classes: int = 47,
    num_layers: int = 2,
    dropout: float = 0.2,
) -> GraphNet:
    """GraphSAGE with mean aggregation: 100-512-47 (OGBN-Products)."""
    geometric = require("torch_geometric.nn", extra="graph", purpose="graph models")
    return GraphNet(
        geometric.SAGEConv,  # aggregates the mean by default
        in_features=in_features,
        hidden_dim=hidden_dim,
        num_classes=num_classes,
        num_layers=num_layers,
        dropout=dropout,
    )
