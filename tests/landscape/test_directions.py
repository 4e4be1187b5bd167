"""Directions are Gaussian, the same for equal names and shapes, and filter-normalized."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.landscape.surface import (
    filter_normalize,
    gaussian,
    make_directions,
)
from tests import toys


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
