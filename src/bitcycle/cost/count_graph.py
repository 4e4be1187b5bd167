"""Sums along the edges of a graph, by PyTorch Geometric's layers; filed by name.

The linear layers inside a convolution have rows of their own. What a convolution's row counts is
the product of an adjacency matrix and node features: edges x features MACs, at 32 bits unless the
layer is converted (Q-Agg). Coefficients of edges are float32 whatever the bits. Where edges have
none, an entry of the matrix is one bit: a MAC is an addition, and costs the bits of what is added.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bitcycle.cost.product import (
    COUNTERS,
    FIXED,
    ONES,
    Call,
    Product,
    UncountedError,
    find_counter,
    layer_products,
)
from bitcycle.nn.base import QuantizedLayer

_UNKNOWN = "aggregation over edges"
_SUMS = ("add", "sum", "mean")


@COUNTERS.register("torch_geometric.nn.conv.gcn_conv.GCNConv")
def count_weighted_sum(call: Call) -> list[Product]:
    """Every node adds up its neighbours' features times the edges' coefficients.

    The self-loops that the layer adds are among the edges; of plain edges that are not normalized
    there are no coefficients.
    """
    module = _check(call)
    x = call.argument(0, "x")
    num_edges = _num_edges(call, x if module.normalize and module.add_self_loops else None)
    weights = call.optional(2, "edge_weight")
    has_coefficients = module.normalize or weights is not None
    return layer_products(
        num_edges * (call.result.numel() // x.shape[module.node_dim]),
        act=call.result.numel(),
        second=num_edges,
        error=call.result.numel(),
        has_grad_input=call.has_graph,
        has_grad_weight=call.needs(weights),
        second_role=FIXED if has_coefficients else ONES,
    )


@COUNTERS.register("torch_geometric.nn.conv.sage_conv.SAGEConv")
@COUNTERS.register("torch_geometric.nn.conv.gin_conv.GINConv")
def count_sum(call: Call) -> list[Product]:
    """Every node adds up its neighbours' features as they are; a mean divides afterwards."""
    module = _check(call)
    x: Tensor = _sender(call)
    num_edges = _num_edges(call)
    num_features = x.numel() // x.shape[module.node_dim]
    is_input = not getattr(module, "project", False)  # else a product of the layer's own
    return layer_products(
        num_edges * num_features,
        act=x.numel(),
        second=num_edges,
        error=call.result.shape[module.node_dim] * num_features,
        has_grad_input=call.needs(x) if is_input else call.has_graph,
        has_grad_weight=False,
        second_role=ONES,
    )


@COUNTERS.register("torch_geometric.nn.conv.gat_conv.GATConv")
def count_attention_sum(call: Call) -> list[Product]:
    """Every node adds up its neighbours' features times attention, one coefficient for each head.

    The scores, a product of every node (and of every edge that has features) with each attention
    vector, are float32.
    """
    module = _check(call)
    x: Tensor = _sender(call)
    num_edges = _num_edges(call, x if module.add_self_loops else None)
    width = module.heads * module.out_channels
    mixed = layer_products(
        num_edges * width,
        act=x.shape[0] * width,
        second=num_edges * module.heads,
        error=call.result.shape[0] * width,
        has_grad_input=call.has_graph,
        has_grad_weight=call.has_graph,
        second_role=FIXED,
    )
    others = call.argument(0, "x")
    num_scored = 2 * x.shape[0]
    if isinstance(others, (tuple, list)):
        num_scored = sum(part.shape[0] for part in others if part is not None)
    if module.lin_edge is not None and call.optional(2, "edge_attr") is not None:
        num_scored += num_edges
    matmuls = ("output", "grad_input", "grad_weight") if call.has_graph else ("output",)
    scores = num_scored * width
    return mixed + [
        Product(matmul=matmul, roles=(FIXED, FIXED), macs=scores, elements=(scores, width))
        for matmul in matmuls
    ]


@COUNTERS.register("torch_geometric.nn.conv.message_passing.MessagePassing")
def count_aggregation(call: Call) -> list[Product]:
    """Its linear layers have rows of their own; what it does along edges is not known."""
    raise UncountedError(_UNKNOWN)


def _check(call: Call) -> Any:
    """The module, if it sums along edges and its type computes what the counter is for."""
    module = call.module
    kind = module.float_type if isinstance(module, QuantizedLayer) else type(module)
    found = find_counter(kind)
    if found is None or kind.forward is not found[0].forward or module.aggr not in _SUMS:
        raise UncountedError(_UNKNOWN)
    return module


def _sender(call: Call) -> Any:
    """The features that edges start from."""
    x = call.argument(0, "x")
    if isinstance(x, (tuple, list)):
        return x[0 if call.module.flow == "source_to_target" else 1]
    return x


def _num_edges(call: Call, looped: Tensor | None = None) -> int:
    """With one loop for every node of `looped`, instead of those that are there."""
    edges = call.argument(1, "edge_index")
    if not isinstance(edges, Tensor) or edges.layout is not torch.strided:
        raise UncountedError("aggregation over a sparse matrix")
    if edges.is_meta:
        raise UncountedError("aggregation over edges on the meta device, where they have no ends")
    if looped is None:
        return edges.shape[1]
    num_nodes: int = looped.shape[call.module.node_dim]
    return int((edges[0] != edges[1]).sum()) + num_nodes
