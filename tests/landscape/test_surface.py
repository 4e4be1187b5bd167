"""Directions, and the loss of moved weights."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bitcycle as bc
from bitcycle.landscape.surface import filter_normalize, gaussian, make_directions, surface_of
from bitcycle.precision import Precision
from tests import toys

# -- surfaces -------------------------------------------------------------------------------------


def state_of(model):
    """Everything that must come back: state, buffers that are not saved, modes, bits."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    bits = bc.get_precision(model) if hasattr(model, "head") else None
    return (
        {name: value.clone() for name, value in tensors.items()},
        [module.training for module in model.modules()],
        bits,
    )


def assert_same(one, other):
    assert one[0].keys() == other[0].keys()
    for name in one[0]:
        assert torch.equal(one[0][name], other[0][name]), name
    assert one[1:] == other[1:]


def trained(precision="w8a8e8"):
    """A converted net that has observed ranges and is in the middle of training."""
    model = bc.quantize_model(toys.net(), max_bits=8)
    bc.set_precision(model, precision)
    for seed in range(3):
        loss_of(model, seed).backward()
    return model


def loss_of(model, seed=0):
    torch.manual_seed(seed)  # dropout
    targets = torch.arange(6) % 3
    return F.cross_entropy(model(toys.randn(6, 2, 6, 6, seed=seed)), targets)


def test_a_point_is_the_loss_at_the_weights_plus_both_directions():
    model = toys.linears(4, 3, 2)
    first, second = make_directions(model, seed=2)
    before = {name: value.clone() for name, value in model.named_parameters()}
    seen = {}

    def look(moved):
        seen.update({name: value.clone() for name, value in moved.named_parameters()})
        return 1.5

    with surface_of(model, look, seed=2) as surface:
        assert surface.loss_at(0.7, -0.2) == 1.5
    for name in ("0.weight", "1.weight"):
        expected = before[name] + 0.7 * first[name] - 0.2 * second[name]
        torch.testing.assert_close(seen[name], expected)
    for name in ("0.bias", "1.bias"):
        assert torch.equal(seen[name], before[name])


def test_points_do_not_depend_on_the_order_they_are_asked_for_in():
    model = trained()
    points = [(0.0, 0.0), (0.5, -0.5), (-1.0, 1.0), (0.25, 0.0)]
    with surface_of(model, loss_of) as surface:
        forth = {point: surface.loss_at(*point) for point in points}
        back = {point: surface.loss_at(*point) for point in reversed(points)}
    assert forth == back
    assert len(set(forth.values())) == 4


@pytest.mark.filterwarnings("ignore::bitcycle.warnings.BitcycleWarning")
def test_by_default_activations_are_put_on_the_range_of_each_batch():
    """As in a model that has observed nothing; far out, the ranges of training would clip."""
    model = trained()
    fresh = bc.quantize_model(toys.net(), max_bits=8)
    fresh.load_state_dict({k: v for k, v in model.state_dict().items() if "act_range" not in k})
    fresh.eval()
    bc.set_precision(fresh, "w8a8e8")
    with torch.no_grad():
        expected = loss_of(fresh).item()
    with surface_of(model, loss_of) as surface:
        assert surface.loss_at(0.0, 0.0) == expected
        far = surface.loss_at(1.0, 1.0)
    with surface_of(model, loss_of, ranges="observed") as surface:
        assert surface.loss_at(1.0, 1.0) != far


def test_a_minus_zero_stays_one_at_the_centre():
    model = toys.linears(2, 1)
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[-0.0, 1.0]]))
    with surface_of(model, lambda m: 1 / m[0].weight[0, 0]) as surface:
        assert surface.loss_at(0.0, 0.0) == -float("inf")


@pytest.mark.parametrize("ranges", ["batch", "observed"])
def test_afterwards_the_model_is_what_it_was_to_the_bit(ranges):
    model = trained()
    before, grad = state_of(model), model.conv.weight.grad.clone()
    bits = Precision.parse("w3a3")
    with surface_of(model, loss_of, precision=bits, ranges=ranges) as surface:
        surface.loss_at(0.3, 0.4)
        assert not model.training
    assert_same(state_of(model), before)
    assert torch.equal(model.conv.weight.grad, grad)
    assert model.conv.is_observed


def test_a_loss_per_sample_and_an_unknown_policy_are_errors():
    model = toys.linears(2, 1)
    with (
        pytest.raises(ValueError, match=r"one number, got a tensor of shape \(3,\)"),
        surface_of(model, lambda m: torch.ones(3)) as surface,
    ):
        surface.loss_at(0.0, 0.0)
    with (
        pytest.raises(ValueError, match="ranges.*batch, observed"),
        surface_of(model, loss_of, ranges="running"),
    ):
        pass


# -- directions -----------------------------------------------------------------------------------


def slow_filter_normalize(direction, weight):
    """d_i * |w_i| / (|d_i| + 1e-10), slice by slice, in Python's numbers."""
    out = torch.empty_like(weight)
    for i in range(weight.shape[0]):
        d, w = direction[i].flatten().tolist(), weight[i].flatten().tolist()
        scale = math.sqrt(sum(x * x for x in w)) / (math.sqrt(sum(x * x for x in d)) + 1e-10)
        out[i] = torch.tensor([x * scale for x in d]).view(weight[i].shape)
    return out


@pytest.mark.parametrize("shape", [(3, 5), (4, 2, 3, 3)])
def test_normalization_is_that_of_a_slow_one(shape):
    direction, weight = toys.randn(*shape, seed=1).double(), toys.randn(*shape, seed=2)
    torch.testing.assert_close(
        filter_normalize(direction, weight), slow_filter_normalize(direction, weight)
    )


def test_a_filter_of_zeros_does_not_move():
    weight = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    moved = filter_normalize(torch.ones(2, 2, dtype=torch.float64), weight)
    assert moved[0].tolist() == [0.0, 0.0]
    torch.testing.assert_close(moved[1].norm(), torch.tensor(5.0))


def test_models_with_equal_names_and_shapes_share_their_gaussian_numbers():
    """Up to the norms of their own filters, whatever their weights and bits."""
    models = toys.net(seed=0), bc.quantize_model(toys.net(seed=1))
    one, other = (make_directions(model, seed=5)[0] for model in models)
    for name in one:
        units = [nn.functional.normalize(d[name].flatten(1), dim=1) for d in (one, other)]
        torch.testing.assert_close(*units)


def test_a_parameters_numbers_do_not_depend_on_what_else_the_model_has():
    small, large = toys.linears(4, 3), toys.linears(4, 3, 2)
    large.load_state_dict({**large.state_dict(), **small.state_dict()})
    assert torch.equal(
        make_directions(small, 0)[0]["0.weight"], make_directions(large, 0)[0]["0.weight"]
    )


def test_seeds_directions_and_names_are_independent():
    draws = [
        gaussian(4000, seed=seed, number=number, name=name)
        for seed, number, name in [(0, 0, "a"), (1, 0, "a"), (0, 1, "a"), (0, 0, "b")]
    ]
    correlations = np.corrcoef(draws) - np.eye(4)
    assert np.abs(correlations).max() < 4 / math.sqrt(4000)


def test_the_numbers_are_standard_normal():
    x = gaussian(200_001, seed=0, number=0, name="w")
    assert len(x) == 200_001
    assert abs(x.mean()) < 0.01
    assert abs(x.std() - 1) < 0.01
    assert abs((np.abs(x) < 1).mean() - 0.6827) < 0.005  # within one deviation
    assert abs((np.abs(x) < 2).mean() - 0.9545) < 0.005
    assert abs((x**4).mean() - 3) < 0.1


def test_a_model_without_filters_is_an_error():
    with pytest.raises(ValueError, match="two dimensions or more"):
        make_directions(nn.BatchNorm1d(3), seed=0)
