"""Tests of GCN and GraphSAGE: sizes, the published count, the formulas, locality."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import bitcycle as bc
from bitcycle.quantizers import SBM
from bitcycle_lab.models import build_model

from .counting import num_parameters

geometric = pytest.importorskip("torch_geometric.nn")


def small(name: str, **options):
    torch.manual_seed(0)
    sizes = {"in_features": 5, "hidden_dim": 8, "num_classes": 3, "num_layers": 2}
    return build_model(name, **(sizes | options)).eval()


def adjacency(edge_index: torch.Tensor, num_nodes: int) -> torch.Tensor:
    """Dense A with A[i, j] = 1 where an edge goes from j to i."""
    dense = torch.zeros(num_nodes, num_nodes)
    dense[edge_index[1], edge_index[0]] = 1.0
    return dense


def test_sizes_of_the_defaults():
    gcn = build_model("gcn")
    convs = 128 * 512 + 512 + 512 * 512 + 512 + 512 * 40 + 40
    assert num_parameters(gcn) == convs + 2 * 2 * 512 == 351_272
    sage = build_model("graphsage")
    convs = 2 * 100 * 512 + 512 + 2 * 512 * 47 + 47
    assert num_parameters(sage) == convs + 2 * 512 == 152_111


def test_the_forward_count_on_arxiv_is_the_published_one():
    model = build_model("gcn")
    num_nodes = 169_343
    macs = sum(conv.lin.weight.numel() for conv in model.convs) * num_nodes
    norms = sum(4 * norm.normalized_shape[0] for norm in model.norms) * num_nodes
    assert macs + norms == 59_652_087_808


def test_gcn_is_the_normalized_adjacency_times_the_weights():
    model = small("gcn")
    x, edge_index = model.example_inputs(6)
    a = adjacency(edge_index, 6) + torch.eye(6)
    d = a.sum(dim=1).rsqrt()
    a = d[:, None] * a * d
    first, last = model.convs
    hidden = F.relu(model.norms[0](a @ x @ first.lin.weight.T + first.bias))
    expected = a @ hidden @ last.lin.weight.T + last.bias
    torch.testing.assert_close(model(x, edge_index), expected)


def test_graphsage_adds_the_node_to_the_mean_of_its_neighbours():
    model = small("graphsage")
    x, edge_index = model.example_inputs(6)
    a = adjacency(edge_index, 6)
    a = a / a.sum(dim=1, keepdim=True)
    first, last = model.convs
    hidden = F.relu(model.norms[0](first.lin_l(a @ x) + first.lin_r(x)))
    torch.testing.assert_close(model(x, edge_index), last.lin_l(a @ hidden) + last.lin_r(hidden))


@pytest.mark.parametrize("name", ["gcn", "graphsage"])
def test_a_node_is_reached_by_its_two_hop_neighbourhood_only(name):
    model = small(name)
    x, edge_index = model.example_inputs(9)  # a ring
    changed = x.clone()
    changed[0] += 1.0
    differs = (model(x, edge_index) != model(changed, edge_index)).any(dim=1)
    assert differs.nonzero().flatten().tolist() == [0, 1, 2, 7, 8]


@pytest.mark.parametrize("num_layers", [1, 4])
@pytest.mark.parametrize(
    ("name", "kind"), [("gcn", geometric.GCNConv), ("graphsage", geometric.SAGEConv)]
)
def test_layers_are_geometrics_own_with_norms_between(name, kind, num_layers):
    model = small(name, num_layers=num_layers)
    assert [type(conv) for conv in model.convs] == [kind] * num_layers
    assert len(model.norms) == num_layers - 1
    assert model(*model.example_inputs(4)).shape == (4, 3)


def made_graph(num_nodes: int = 120, num_classes: int = 3, num_features: int = 12):
    """Noisy features around a centre for each class; nine edges in ten within a class."""
    g = torch.Generator().manual_seed(0)
    targets = torch.randint(num_classes, (num_nodes,), generator=g)
    centres = torch.randn(num_classes, num_features, generator=g)
    x = centres[targets] / 2 + torch.randn(num_nodes, num_features, generator=g)
    edges = torch.randint(num_nodes, (2, 6 * num_nodes), generator=g)
    is_kept = targets[edges[0]] == targets[edges[1]]
    is_kept |= torch.rand(edges.shape[1], generator=g) < 0.1
    edges = edges[:, is_kept]
    return x, torch.cat([edges, edges.flip(0)], dim=1), targets


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("gcn", "quantized"),
        ("graphsage", "float32"),
        pytest.param("gcn", "float32", marks=pytest.mark.slow),
        pytest.param("graphsage", "quantized", marks=pytest.mark.slow),
    ],
)
def test_a_graph_net_learns_while_its_bits_cycle_from_3_to_8(name, mode):
    x, edges, targets = made_graph()
    is_train = torch.arange(len(x)) < 40
    torch.manual_seed(0)
    model = build_model(name, in_features=12, hidden_dim=16, num_classes=3, num_layers=2)
    bc.quantize_model(model, SBM(aggregation=mode))
    bits = bc.PrecisionScheduler(model, forward="CR:3-8:4", backward=8, total_steps=60)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses, seen = [], set()
    for _ in range(60):
        loss = F.cross_entropy(model(x, edges)[is_train], targets[is_train])
        loss.backward()
        losses.append(loss.item())
        seen.add(bc.get_precision(model).weight)
        optimizer.step()
        optimizer.zero_grad()
        bits.step()
    hits = model.eval()(x, edges).argmax(dim=1) == targets
    assert seen == {3, 4, 5, 6, 7, 8}
    assert losses[-1] < 0.1 * losses[0]
    assert hits[~is_train].float().mean() > 0.7  # chance is a third; float32 has 0.94 and 0.81
