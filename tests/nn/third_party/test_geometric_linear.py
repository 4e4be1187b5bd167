"""PyTorch Geometric's Linear: a range per node, nothing observed, the float module without bits."""

import copy

import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.quantizers import SBM, AbsMax
from tests import naive

from .graphs import assert_close, convert, features, fixed_error, per_error, per_node, run

geometric = pytest.importorskip("torch_geometric.nn")


def linear(bias=True):
    torch.manual_seed(0)
    return geometric.Linear(5, 3, bias=bias)


@pytest.mark.parametrize("bits", [(4, 4, 4), (3, 3, 8), (8, None, None), (None, 2, 6)])
@pytest.mark.parametrize("kernel", ["auto", "int8"])
def test_the_products_are_those_of_per_node_features_and_per_row_weights(bits, kernel):
    w, a, e = bits
    layer, x = linear(), features(5)
    bc.quantize_model(layer, SBM(error_rounding="nearest"), kernel=kernel)
    bc.set_precision(layer, bc.Precision(weight=w, act=a, error=e))
    ours = run(layer, x)
    error = fixed_error(ours["output"])
    weight = naive.per_channel(layer.weight.detach(), w)
    expected = naive.linear(per_node(x, a), weight, layer.bias.detach(), per_error(error, e))
    assert_close(
        ours,
        {
            "output": expected.output,
            "x": expected.grad_input,
            "weight": expected.grad_weight,
            "bias": error.sum(0),
        },
    )


def test_a_node_does_not_depend_on_the_spread_of_the_others():
    layer, x = convert(linear(), "float32", "FW3/BW8"), features(5)
    alone = torch.cat([layer(x[i : i + 1]) for i in range(len(x))])
    assert torch.equal(layer(x), alone)
    assert not torch.equal(layer(x), layer(x * torch.linspace(1, 2, 5)))


def test_nodes_of_several_graphs_at_once_have_their_own_ranges_too():
    layer, x = convert(linear(), "float32", "FW3/BW8"), features(5)
    stacked = torch.stack([x, 3 * x])  # (graphs, nodes, features)
    assert torch.equal(layer(stacked), torch.stack([layer(x), layer(3 * x)]))


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


def test_integer_kernels_are_declined_and_the_audit_says_why():
    layer = bc.quantize_model(linear(), kernel="int8")
    (row,) = bc.audit(layer).rows
    assert row.kernel == "simulate"
    assert "one scale per node" in row.reason
    bc.quantize_model(layer, kernel="bf16")  # converted again
    assert bc.audit(layer).rows[0].kernel == "simulate"
    bc.set_precision(layer, "w16a16")  # more than codes carry


def test_a_lazy_layer_waits_for_its_first_batch():
    model = nn.Sequential(nn.Linear(4, 4), geometric.Linear(-1, 3))
    bc.quantize_model(model)
    assert bc.audit(model)["1"].reason == "lazy: run one batch through the model first"
    model(torch.ones(2, 4))
    bc.quantize_model(model)
    assert bc.audit(model)["1"].is_converted


def test_conversion_does_not_change_the_layer_without_bits_and_is_undone_exactly():
    layer, x = linear(), features(5)
    before, expected = copy.deepcopy(layer), run(linear(), x)
    bc.quantize_model(layer)
    assert isinstance(layer, geometric.Linear)
    assert all(torch.equal(ours, expected[name]) for name, ours in run(layer, x).items())
    bc.set_precision(layer, "FW4/BW8")
    assert "precision=w4a4e8g8" in repr(layer)
    bc.unquantize_model(layer)
    layer.zero_grad()
    assert type(layer) is geometric.Linear
    assert vars(layer).keys() == vars(before).keys()
    assert layer._non_persistent_buffers_set == set()
    assert repr(layer) == repr(before)
