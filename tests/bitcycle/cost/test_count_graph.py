"""Counts of sums along edges, by hand: GCN, GraphSAGE, GIN, GAT, converted or not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.cost import count_macs
from bitcycle.quantizers import SBM
from bitcycle_lab.models import build_model
from tests.bitcycle.cost.flops import measured_macs

geometric = pytest.importorskip("torch_geometric.nn")

EDGES = torch.tensor([[0, 1, 1, 2], [1, 0, 1, 0]])  # of three nodes; one is a loop


def gcn(num_layers: int = 2) -> nn.Module:
    return build_model("gcn", in_features=6, hidden_dim=5, num_classes=4, num_layers=num_layers)


def test_a_graph_net_counts_its_linear_layers_and_its_weighted_sums() -> None:
    model = gcn()
    trace = count_macs(model, model.example_inputs(16))
    # a ring of 16 nodes: 32 edges, and 16 self-loops that the layer adds
    assert [(row.name, row.output, row.grad_input, row.grad_weight) for row in trace.layers] == [
        ("convs.0", 48 * 5, 48 * 5, 0),
        ("convs.0.lin", 16 * 30, 0, 16 * 30),
        ("convs.1", 48 * 4, 48 * 4, 0),
        ("convs.1.lin", 16 * 20, 16 * 20, 16 * 20),
    ]
    assert [row.is_aggregation for row in trace.layers] == [True, False, True, False]
    assert trace.uncounted == ()


def test_self_loops_that_are_there_are_not_counted_twice() -> None:
    model = gcn(num_layers=1)
    x, edges = torch.ones(3, 6), torch.tensor([[0, 1, 1, 2], [1, 0, 1, 0]])
    row = count_macs(model, (x, edges)).layers[0]
    assert row.output == (3 + 3) * 4  # three edges between nodes, a loop for each of three nodes


def test_the_coefficients_of_edges_are_float32_whatever_the_bits() -> None:
    model = gcn()
    (row, *_) = count_macs(model, model.example_inputs(16)).layers
    # output act x coefficient, grad_input error x coefficient
    assert sum(row.at_bits((4, 4, 8)).bitops.values()) == 240 * 32 * (4 + 8)


def test_the_flop_counter_agrees_on_the_linear_layers_of_a_graph_net() -> None:
    model = gcn(num_layers=3)
    inputs = model.example_inputs(16)
    linears = [row for row in count_macs(model, inputs).layers if not row.is_aggregation]
    assert sum(sum(row.macs.values()) for row in linears) == measured_macs(model, inputs)


def test_a_changed_graph_convolution_is_named() -> None:
    class Mine(geometric.GCNConv):
        def forward(self, x, edge_index):
            return super().forward(x, edge_index) * 2

    model = nn.Sequential(Mine(6, 4))
    model.forward = lambda x, edges: model[0](x, edges)
    inputs = gcn().example_inputs(16)
    assert count_macs(model, inputs).uncounted == ("0 (Mine): aggregation over edges",)


def only(layer: nn.Module, *inputs: object) -> dict[tuple[str, tuple[str, str]], int]:
    """MACs of the layer's own row."""
    (row,) = [row for row in count_macs(layer, inputs, batch_size=3).layers if row.name == ""]
    return {(p.matmul, p.roles): p.macs for p in row.products}


def wanting(num_features: int) -> torch.Tensor:
    return torch.ones(3, num_features, requires_grad=True)


def test_edges_without_coefficients_are_one_bit() -> None:
    layer = geometric.GCNConv(6, 5, normalize=False)
    assert only(layer, wanting(6), EDGES) == {
        ("output", ("act", "ones")): 4 * 5,
        ("grad_input", ("error", "ones")): 4 * 5,
    }
    weighted = only(layer, wanting(6), EDGES, torch.ones(4, requires_grad=True))
    assert weighted == {
        ("output", ("act", "fixed")): 4 * 5,
        ("grad_input", ("error", "fixed")): 4 * 5,
        ("grad_weight", ("error", "act")): 4 * 5,
    }


def test_a_sum_of_features_as_they_are_is_of_additions() -> None:
    for kind in ("SAGEConv", "GINConv"):
        layer = (
            geometric.GINConv(nn.Linear(6, 5)) if kind == "GINConv" else geometric.SAGEConv(6, 5)
        )
        sums = {("output", ("act", "ones")): 4 * 6, ("grad_input", ("error", "ones")): 4 * 6}
        assert only(layer, wanting(6), EDGES) == sums
        del sums["grad_input", ("error", "ones")]  # of the data: nothing wants its gradient
        assert only(layer, torch.ones(3, 6), EDGES) == sums


def test_of_two_sets_of_nodes_the_senders_are_added_up() -> None:
    layer = geometric.SAGEConv((6, 2), 5)
    edges = torch.tensor([[0, 1, 3], [1, 0, 1]])
    nodes = (torch.ones(4, 6), torch.ones(2, 2))
    trace = count_macs(layer, (nodes, edges), batch_size=2)
    (row,) = [row for row in trace.layers if row.name == ""]
    assert row.products[0].macs == 3 * 6
    assert row.products[0].elements == (4 * 6, 3)
    assert trace.uncounted == ()


def test_attention_has_a_coefficient_for_each_head_and_float32_scores() -> None:
    layer = geometric.GATConv(6, 5, heads=2)
    num_edges = 3 + 3  # a loop for every node instead of the one that is there
    assert only(layer, wanting(6), EDGES) == {
        ("output", ("act", "fixed")): num_edges * 10,
        ("output", ("fixed", "fixed")): 2 * 3 * 10,
        ("grad_input", ("error", "fixed")): num_edges * 10,
        ("grad_input", ("fixed", "fixed")): 2 * 3 * 10,
        ("grad_weight", ("error", "act")): num_edges * 10,
        ("grad_weight", ("fixed", "fixed")): 2 * 3 * 10,
    }


def test_other_aggregations_are_named() -> None:
    for layer in (geometric.SAGEConv(6, 5, aggr="max"), geometric.GraphConv(6, 5)):
        trace = count_macs(layer, (torch.ones(3, 6), EDGES))
        kind = type(layer).__name__
        assert trace.uncounted == (f"(the model itself) ({kind}): aggregation over edges",)


def test_float_aggregation_costs_32_bits_and_quantized_aggregation_its_own() -> None:
    costs = {}
    for mode in ("float32", "quantized"):
        model = bc.quantize_model(gcn(), SBM(aggregation=mode))
        costs[mode] = bc.training_cost(
            model, model.example_inputs(16), forward=4, backward=8, total_steps=1
        ).by_layer()
    # 48 edges and loops x 5 features, output and grad_input
    assert costs["float32"]["convs.0"] == 2 * 240 * 32 * 32
    assert costs["quantized"]["convs.0"] == 240 * (4 * 32 + 8 * 32)
    assert costs["float32"]["convs.1.lin"] == costs["quantized"]["convs.1.lin"]


def test_a_converted_graph_net_counts_the_same_products() -> None:
    for mode in ("float32", "quantized"):
        for name in ("gcn", "graphsage"):
            model = build_model(name, in_features=6, hidden_dim=5, num_classes=4)
            inputs = model.example_inputs(16)
            trace = count_macs(model, inputs)
            assert trace.uncounted == ()
            assert count_macs(bc.quantize_model(model, SBM(aggregation=mode)), inputs) == trace
