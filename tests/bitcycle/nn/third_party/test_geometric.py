"""PyTorch Geometric: a range per node; FP-Agg and Q-Agg of convolutions against dense matrices."""

import copy
import itertools
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bitcycle as bc
from bitcycle.memory import saved_bytes
from bitcycle.native.library import library
from bitcycle.nn.control import CONTROL_SIZE
from bitcycle.quantizers import SBM, AbsMax
from tests.bitcycle import naive

from .graphs import (
    EDGES,
    FOLDED,
    NUM_NODES,
    assert_close,
    convert,
    dense,
    features,
    fixed_error,
    oracle_linear,
    per_error,
    per_node,
    run,
    straight,
    with_error,
)

geometric = pytest.importorskip("torch_geometric.nn")


def linear(bias=True):
    torch.manual_seed(0)
    return geometric.Linear(5, 3, bias=bias)


def test_the_products_are_those_of_per_node_features_and_per_row_weights():
    for bits in ((4, 4, 4), (3, 3, 8), (8, None, None), (None, 2, 6)):
        for kernel, tolerance in (("simulate", 1e-5), ("auto", FOLDED), ("native", FOLDED)):
            w, a, e = bits
            layer, x = linear(), features(5)
            bc.quantize_model(layer, SBM(error_rounding="nearest"), kernel=kernel)
            bc.set_precision(layer, bc.Precision(weight=w, act=a, error=e))
            ours = run(layer, x)
            error = fixed_error(ours["output"])
            weight = naive.per_channel(layer.weight.detach(), w)
            expected = naive.linear(
                per_node(x, a), weight, layer.bias.detach(), per_error(error, e)
            )
            assert_close(
                ours,
                {
                    "output": expected.output,
                    "x": expected.grad_input,
                    "weight": expected.grad_weight,
                    "bias": error.sum(0),
                },
                tolerance=tolerance,
            )


def test_a_node_does_not_depend_on_the_spread_of_the_others():
    layer, x = convert(linear(), "float32", "FW3/BW8"), features(5)
    alone = torch.cat([layer(x[i : i + 1]) for i in range(len(x))])
    assert_close({"rows": layer(x)}, {"rows": alone.detach()})
    with pytest.raises(AssertionError):
        assert_close({"rows": layer(x)}, {"rows": layer(x * torch.linspace(1, 2, 5)).detach()})


def test_nodes_of_several_graphs_at_once_have_their_own_ranges_too():
    layer, x = convert(linear(), "float32", "FW3/BW8"), features(5)
    stacked = torch.stack([x, 3 * x])  # (graphs, nodes, features)
    assert_close({"y": layer(stacked)}, {"y": torch.stack([layer(x), layer(3 * x)]).detach()})


def test_evaluation_takes_the_same_ranges_as_training_and_observes_nothing(recwarn):
    layer, x = convert(linear(), "float32", "FW3/BW8"), features(5)
    assert torch.equal(layer.eval()(x), layer.train()(x))
    assert sorted(layer.state_dict()) == ["bias", "weight"]
    assert bc.audit(layer).rows[0].is_observed is None
    assert not recwarn.list


def test_a_symmetric_rule_takes_a_range_per_node_too():
    layer, x = bc.quantize_model(linear(), AbsMax()), features(5)
    bc.set_precision(layer, "a3")
    assert torch.equal(layer(x)[2:3], layer(x[2:3]))


@pytest.mark.skipif(library() is None, reason="no native library")
def test_products_are_those_of_codes_and_a_direction_is_one_call():
    for kernel in ("auto", "native"):
        layer = bc.quantize_model(linear(), kernel=kernel)
        bc.set_precision(layer, "w8a8e8")
        output = layer(features(5).requires_grad_())
        assert type(output.grad_fn).__name__ == "_WholeProductBackward"
        (row,) = bc.audit(layer).rows
        assert row.kernel == "native"
    with pytest.raises(ValueError, match="w16a16"):
        bc.set_precision(layer, "w16a16")  # more than codes carry


@pytest.mark.parametrize("kernel", ["simulate", "native"])
def test_the_input_is_kept_as_codes_with_a_grid_for_each_node(kernel):
    layer = bc.quantize_model(geometric.Linear(64, 3), kernel=kernel)
    bc.set_precision(layer, "w8a8e8")
    x = torch.randn(100, 64)
    kept = saved_bytes(layer, lambda model: model(x).sum(), exclude=(x,)).num_bytes
    # codes, four numbers per node and one for all; or values, two numbers per node; the control
    numbers = (4 * 100 + 1 if has_codes(kernel) else 64 * 100 + 2 * 100) + CONTROL_SIZE
    assert kept == 4 * numbers + (64 * 100 if has_codes(kernel) else 0)


def has_codes(kernel):
    return kernel == "native" and library() is not None


@pytest.mark.parametrize("kernel", ["simulate", "native"])
@pytest.mark.parametrize("first", ["dense", "graph"])
def test_a_layer_with_one_range_that_reads_the_same_tensor_shares_no_codes(kernel, first):
    class Skip(nn.Module):
        def __init__(self):
            super().__init__()
            self.dense, self.graph = nn.Linear(5, 3), geometric.Linear(5, 3)

    torch.manual_seed(0)
    model = bc.quantize_model(Skip(), SBM(), kernel=kernel)
    bc.set_precision(model, "w8a3e8")
    x = features(5).requires_grad_()
    one, other = (model.dense, model.graph)[:: 1 if first == "dense" else -1]
    shared = x * 1.0
    kept = one(shared)  # and with it the codes
    assert torch.equal(other(shared), other(x * 1.0))
    assert torch.equal(kept, one(x * 1.0))


@pytest.mark.parametrize("kernel", ["simulate", "native"])
def test_a_feature_that_is_not_finite_shows_in_the_health_and_in_its_node_only(kernel):
    layer = bc.quantize_model(linear(), kernel=kernel)
    bc.set_precision(layer, "w8a8e8")
    x = features(5)
    x[3, 2] = torch.nan
    output = layer(x)
    assert layer.health.isnan().tolist() == [False, True, False, False]
    assert output.isnan().all(1).tolist() == [i == 3 for i in range(NUM_NODES)]


def test_inside_autocast_the_output_has_its_dtype():
    for kernel in ("simulate", "native"):
        layer = bc.quantize_model(linear(), SBM(error_rounding="nearest"), kernel=kernel)
        bc.set_precision(layer, "w8a8e8")
        x = features(5)
        wide = layer(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(layer(x), wide.bfloat16())
            half = layer(x.bfloat16())
        assert torch.equal(half, layer(x.bfloat16().float()).bfloat16())


def test_a_lazy_layer_waits_for_its_first_batch():
    model = nn.Sequential(nn.Linear(4, 4), geometric.Linear(-1, 3))
    bc.quantize_model(model)
    assert bc.audit(model)["1"].reason == "lazy: run one batch through the model first"
    model(torch.ones(2, 4))
    bc.quantize_model(model)
    assert bc.audit(model)["1"].is_converted


MODES = ["float32", "quantized"]
BITS = [(4, 4, 4), (3, 3, 8), (None, 4, None), (None, None, 4)]
WEIGHTS = torch.linspace(0.3, 2.0, EDGES.shape[1])


def precision(bits):
    return bc.Precision(**dict(zip(("weight", "act", "error"), bits, strict=True)))


def gcn(**options):
    torch.manual_seed(0)
    layer = geometric.GCNConv(5, 4, **options)
    if layer.bias is not None:
        nn.init.normal_(layer.bias)
    return layer


def propagation_matrix(layer, weights):
    """D^-1/2 (A + I) D^-1/2, as the options say; a loop that is there keeps its weight."""
    a = dense(EDGES, weights)
    if layer.flow == "target_to_source":
        a = a.t().contiguous()
    if layer.add_self_loops:
        # without weights, PyTorch Geometric's loops weigh 1 even if `improved`
        fill = 2.0 if layer.improved and weights is not None else 1.0
        for i in range(NUM_NODES):
            a[i, i] = a[i, i] if a[i, i] else fill
    if layer.normalize:
        d = a.sum(dim=1)
        root = torch.where(d > 0, d.clamp_min(1e-30).rsqrt(), 0.0)
        a = root[:, None] * a * root
    return a


GCN = [
    ({}, BITS), ({"bias": False, "improved": True}, BITS[1:2]), ({"normalize": False}, BITS[1:2]),
    ({"add_self_loops": False}, BITS[1:2]), ({"flow": "target_to_source"}, BITS[1:2]),
]  # fmt: skip


@pytest.mark.parametrize(("options", "all_bits"), GCN, ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_gcn_equals_dense_matrices(options, all_bits, mode):
    for bits, weights in itertools.product(all_bits, (None, WEIGHTS)):
        _check_gcn(options, weights, bits, mode)


def _check_gcn(options, weights, bits, mode):
    w, a, e = bits
    layer, x = convert(gcn(**options), mode, precision(bits)), features(5)
    ours = run(layer, x, EDGES, weights)
    error = fixed_error(ours["output"])
    is_quantized = mode == "quantized"
    matrix = propagation_matrix(layer, weights)
    weight = naive.per_channel(layer.lin.weight.detach(), w).double()
    # forward: x^ W^, then what is summed
    x_grid = per_node(x, a)
    h = x_grid @ weight.t()
    output = matrix @ (per_node(h, a) if is_quantized else h)
    # backward: the error of the sum, then that of the product
    through = matrix.t() @ (per_error(error, e) if is_quantized else error.double())
    through = per_error(through, e)
    expected = {"output": output, "x": through @ weight}
    if layer.bias is not None:
        expected["output"] = output + layer.bias.detach()
        expected["bias"] = error.sum(0)
    expected["lin.weight"] = through.t() @ x_grid
    assert_close(ours, expected)


def test_the_gradient_of_an_edge_weight_is_of_the_quantized_features_and_error():
    layer, x = convert(gcn(normalize=False), "quantized", "w4a4e4"), features(5)
    weights = WEIGHTS.clone().requires_grad_()
    output = layer(x, EDGES, weights)
    error = fixed_error(output)
    output.backward(error)
    h = per_node(x, 4) @ naive.per_channel(layer.lin.weight.detach(), 4).double().t()
    h, e = per_node(h, 4), per_error(error, 4)
    expected = torch.stack([e[i] @ h[j] for j, i in EDGES.t().tolist()])
    assert_close({"weights": weights.grad}, {"weights": expected})


@pytest.mark.parametrize(
    "options", [{}, {"root_weight": False, "bias": False}, {"aggr": "add"}], ids=str
)
@pytest.mark.parametrize("mode", MODES)
def test_sage_equals_dense_matrices(options, mode):
    for bits in BITS:
        w, a, e = bits
        torch.manual_seed(0)
        layer = convert(geometric.SAGEConv(5, 4, **options), mode, precision(bits))
        x = features(5)
        ours = run(layer, x, EDGES)
        error = fixed_error(ours["output"])
        is_quantized = mode == "quantized"
        matrix = dense(EDGES)
        if layer.aggr == "mean":
            matrix = matrix / matrix.sum(dim=1, keepdim=True).clamp_min(1)
        w_l = naive.per_channel(layer.lin_l.weight.detach(), w).double()
        near = matrix @ (per_node(x, a) if is_quantized else x.double())
        near_grid, e_grid = per_node(near, a), per_error(error, e)
        back = e_grid @ w_l
        expected = {
            "output": near_grid @ w_l.t(),
            "x": matrix.t() @ (per_error(back, e) if is_quantized else back),
            "lin_l.weight": e_grid.t() @ near_grid,
        }
        if layer.lin_l.bias is not None:
            expected["output"] = expected["output"] + layer.lin_l.bias.detach()
            expected["lin_l.bias"] = error.sum(0)
        if layer.root_weight:
            w_r, x_grid = naive.per_channel(layer.lin_r.weight.detach(), w).double(), per_node(x, a)
            expected["output"] = expected["output"] + x_grid @ w_r.t()
            expected["x"] = expected["x"] + e_grid @ w_r
            expected["lin_r.weight"] = e_grid.t() @ x_grid
        assert_close(ours, expected)


@pytest.mark.parametrize("mode", MODES)
def test_gat_quantizes_the_features_that_are_mixed_and_not_the_attention(mode):
    for concat in (True, False):
        for bits in BITS:
            torch.manual_seed(0)
            heads, width = 2, 3
            layer = geometric.GATConv(5, width, heads=heads, concat=concat)
            convert(layer, mode, precision(bits))
            x = features(5) / features(5).abs().max()
            ours = run(layer, x, EDGES)
            parameters = {
                n: p.detach().clone().requires_grad_() for n, p in layer.named_parameters()
            }
            leaf = x.clone().requires_grad_()
            h = oracle_linear(leaf, parameters["lin.weight"], bits).view(NUM_NODES, heads, width)
            to_i, to_j = (
                (h * parameters[f"att_{end}"]).sum(-1) for end in ("dst", "src")
            )  # (N, heads)
            scores = F.leaky_relu(to_i[:, None] + to_j[None], 0.2)  # (i, j, heads)
            is_edge = (dense(EDGES) + torch.eye(NUM_NODES)) > 0
            alpha = scores.masked_fill(~is_edge[..., None], -torch.inf).softmax(dim=1)
            mixed = straight(h, bits[1]) if mode == "quantized" else h
            output = torch.einsum("ijh,jhc->ihc", alpha, mixed)
            output = with_error(output, bits[2]) if mode == "quantized" else output
            output = output.flatten(1) if concat else output.mean(dim=1)
            output = output + parameters["bias"]
            output.backward(fixed_error(output))
            grads = {name: p.grad for name, p in parameters.items()}
            assert_close(ours, {"output": output.detach(), "x": leaf.grad, **grads})


@pytest.mark.parametrize("mode", MODES)
def test_gin_sums_quantized_features_and_its_network_is_converted_as_any(mode):
    for bits in BITS:
        torch.manual_seed(0)
        inner = nn.Linear(5, 4)
        layer = geometric.GINConv(nn.Sequential(inner, nn.ReLU()), eps=0.3, train_eps=True)
        convert(layer, mode, precision(bits))
        x = features(5)
        ours = run(layer, x, EDGES)
        eps = layer.eps.detach().clone().requires_grad_()
        leaf, w = x.clone().requires_grad_(), inner.weight.detach()
        near = dense(EDGES).float() @ (straight(leaf, bits[1]) if mode == "quantized" else leaf)
        near = with_error(near, bits[2]) if mode == "quantized" else near
        total = near + (1 + eps) * leaf
        # an ordinary nn.Linear: one range for the whole batch
        grid = total + (naive.per_tensor(total.detach(), bits[1]) - total.detach())
        weight = w.clone().requires_grad_()
        on_grid = weight + (naive.per_channel(w, bits[0]) - w)
        output = F.relu(with_error(grid @ on_grid.t(), bits[2]) + inner.bias.detach())
        output.backward(fixed_error(output))
        bias = (fixed_error(output) * (output > 0)).sum(0)
        assert_close(
            ours,
            {
                "output": output.detach(),
                "x": leaf.grad,
                "eps": eps.grad,
                "nn.0.weight": weight.grad,
                "nn.0.bias": bias,
            },
        )
        assert "nn.0.act_range" in layer.state_dict()


# -- forms of input -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["GCNConv", "SAGEConv"])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_a_sparse_matrix_is_aggregated_as_its_edges_are(kind):
    torch.manual_seed(0)
    layer = convert(getattr(geometric, kind)(5, 4), "quantized", "w4a4e4")
    x = features(5)
    edges = EDGES[:, EDGES[0] != EDGES[1]]  # a loop in a matrix would get another on top
    matrix = dense(edges).float().to_sparse_csr()
    assert_close(run(layer, x, matrix), run(layer, x, edges))


def test_of_two_sets_of_nodes_only_the_sending_one_is_put_on_the_grid():
    torch.manual_seed(0)
    layer = convert(geometric.SAGEConv((5, 6), 4), "quantized", "a2")
    sending, receiving = features(5), features(6, num_nodes=3, seed=4)
    edges = torch.tensor([[0, 1, 2, 5], [0, 0, 1, 2]])
    matrix = dense(edges)[:3]
    near = matrix @ per_node(sending, 2) / matrix.sum(dim=1, keepdim=True)
    expected = per_node(near, 2) @ layer.lin_l.weight.double().t() + layer.lin_l.bias
    expected = expected + per_node(receiving, 2) @ layer.lin_r.weight.double().t()
    ours = layer((sending, receiving), edges).detach()
    assert_close({"y": ours}, {"y": expected.detach()})


def test_a_graph_without_edges_or_nodes_is_handled():
    layer = convert(gcn(), "quantized", "w4a4e4")
    none = torch.zeros(2, 0, dtype=torch.long)
    assert torch.isfinite(run(layer, features(5), none)["x"]).all()
    assert layer(torch.zeros(0, 5), none).shape == (0, 4)


# -- what conversion does -------------------------------------------------------------------------


def test_by_default_only_the_linear_layers_are_converted():
    layer = bc.quantize_model(gcn())
    audit = bc.audit(layer)
    assert [(row.name, row.is_converted) for row in audit.rows] == [("", False), ("lin", True)]
    assert audit[""].reason == "sums along edges in float32 (aggregation='float32')"
    assert type(layer) is geometric.GCNConv


def test_converting_again_goes_from_one_mode_to_the_other():
    layer, x = gcn(), features(5)
    bc.quantize_model(layer, SBM(aggregation="quantized"))
    bc.set_precision(layer, "w3a3")
    quantized = layer(x, EDGES)
    bc.quantize_model(layer, SBM())
    assert type(layer) is geometric.GCNConv
    assert not torch.equal(layer(x, EDGES), quantized)
    bc.quantize_model(layer, SBM(aggregation="quantized"))
    bc.set_precision(layer, "w3a3")
    assert torch.equal(layer(x, EDGES), quantized)


def test_a_model_that_only_aggregates_says_how_to_convert_it():
    model = geometric.GINConv(nn.Identity())
    with pytest.raises(ValueError, match="aggregation='quantized'"):
        bc.quantize_model(model)


def test_other_convolutions_are_named_and_their_linear_layers_converted():
    model = bc.quantize_model(geometric.GraphConv(5, 4), SBM(aggregation="quantized"))
    audit = bc.audit(model)
    assert audit[""].reason == "aggregates in float32: no quantized layer for its type"
    assert [row.name for row in audit.converted_rows] == ["lin_rel", "lin_root"]


class Twice(geometric.GCNConv):
    def forward(self, x, edge_index):
        return 2 * super().forward(x, edge_index)


def test_a_subclass_is_converted_and_copied_as_what_it_is():
    torch.manual_seed(0)
    layer, x = convert(Twice(5, 4), "quantized", "w4a4e4"), features(5)
    plain = convert(gcn(), "quantized", "w4a4e4")
    plain.load_state_dict(layer.state_dict())
    assert torch.equal(layer(x, EDGES), 2 * plain(x, EDGES))
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x, EDGES), layer(x, EDGES))
        assert isinstance(bc.unquantize_model(other), Twice)


class Nameless(geometric.GCNConv):
    def forward(self, x, edge_index):
        return self.propagate(edge_index, h=self.lin(x))

    def message(self, h_j):
        return h_j


def test_a_subclass_whose_features_have_another_name_is_refused_when_it_runs():
    layer = convert(Nameless(5, 4), "quantized", "w4a4e4")
    with pytest.raises(ValueError, match="Nameless"):
        layer(features(5), EDGES)


@pytest.mark.parametrize("when", ["before", "after"])
def test_explaining_a_layer_does_not_bypass_its_grids(when):
    layer, x = gcn(), features(5)

    def explain():
        layer._edge_mask, layer._apply_sigmoid = torch.ones(EDGES.shape[1]), False
        layer._loop_mask = EDGES[0] != EDGES[1]
        layer.explain = True

    if when == "before":
        explain()
    convert(layer, "quantized", "w3a3")
    if when == "after":
        plain = layer(x, EDGES)
        explain()
        assert torch.equal(layer(x, EDGES), plain)
    assert torch.equal(layer(x, EDGES), convert(gcn(), "quantized", "w3a3")(x, EDGES))
    bc.unquantize_model(layer)
    torch.testing.assert_close(layer(x, EDGES), gcn()(x, EDGES))
    layer.explain = False
    assert torch.equal(layer(x, EDGES), gcn()(x, EDGES))


def test_features_in_parts_are_put_on_the_same_grids():
    layer, x = convert(gcn(decomposed_layers=2), "quantized", "w3a3"), features(5)
    whole = convert(gcn(), "quantized", "w3a3")
    torch.testing.assert_close(layer(x, EDGES), whole(x, EDGES))


def test_errors_are_rounded_stochastically_and_repeat_with_the_seed():
    def grads(seed):
        layer = bc.quantize_model(gcn(), SBM(aggregation="quantized"), seed=seed)
        bc.set_precision(layer, "e4")
        return run(layer, features(5), EDGES)["x"]

    assert torch.equal(grads(0), grads(0))
    assert not torch.equal(grads(0), grads(1))


def test_collect_sees_what_is_aggregated():
    layer = convert(gcn(), "quantized", "w4a4e4")
    with bc.collect(layer) as stats:
        run(layer, features(5), EDGES)
    seen = sorted((row.layer, row.role) for row in stats.rows())
    own = [("", "act"), ("", "error")]
    assert seen == [*own, ("lin", "act"), ("lin", "error"), ("lin", "weight")]


def test_a_graph_of_no_finite_numbers_shows_in_the_health():
    layer, x = convert(gcn(), "quantized", "w4a4e4"), features(5)
    x[3, 2] = torch.nan
    layer(x, EDGES)
    assert layer.health.isnan().any()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["GCNConv", "SAGEConv"])
def test_a_compiled_layer_computes_the_same_and_changing_bits_compiles_nothing(kind):
    torch._dynamo.reset()
    torch.manual_seed(0)
    layer = getattr(geometric, kind)(5, 4)
    quantizer = SBM(aggregation="quantized", error_rounding="nearest")
    bc.quantize_model(layer, quantizer, max_bits=8)
    compiled, x = torch.compile(layer, backend="aot_eager"), features(5)
    bc.set_precision(layer, "FW4/BW8")
    graphs = None
    for precision in ("FW4/BW8", "FW3/BW8", "FW8/BW6"):
        bc.set_precision(layer, precision)
        expected, leaf = run(layer, x, EDGES), x.clone().requires_grad_()
        output = compiled(leaf, EDGES)
        output.backward(fixed_error(output))
        assert torch.equal(output, expected["output"])
        assert torch.equal(leaf.grad, expected["x"])
        now = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        assert graphs in (None, now)
        graphs = now
