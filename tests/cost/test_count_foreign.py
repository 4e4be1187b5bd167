"""Counts of layers from PyTorch Geometric and transformers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bitcycle.cost import COUNTERS, Call, count_macs
from bitcycle.models import build_model


class Conv1D(nn.Module):
    """As in transformers: a linear layer with a weight (in, out)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def test_the_linear_layer_of_transformers_is_counted_by_its_name() -> None:
    module, x = Conv1D(), torch.ones(3, 4)
    products = COUNTERS["transformers.pytorch_utils.Conv1D"](Call(module, (x,), {}, module(x)))
    assert [(p.matmul, p.macs) for p in products] == [("output", 72), ("grad_weight", 72)]


def test_a_graph_net_counts_its_linear_layers_and_names_its_aggregations() -> None:
    pytest.importorskip("torch_geometric")
    model = build_model("gcn", in_features=6, hidden_dim=5, num_classes=4, num_layers=2)
    trace = count_macs(model, model.example_inputs(16))
    assert [(row.name, row.output, row.grad_input, row.grad_weight) for row in trace.layers] == [
        ("convs.0.lin", 16 * 30, 0, 16 * 30),
        ("convs.1.lin", 16 * 20, 16 * 20, 16 * 20),
    ]
    assert trace.uncounted == (
        "convs.0 (GCNConv): aggregation over edges",
        "convs.1 (GCNConv): aggregation over edges",
    )
