"""Weights that are computed: parametrizations and pruning, before and after conversion."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import bitcycle as bc

from .training import inputs, mlp

WAYS = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_parametrized_layer_stays_float_beside_converted_ones(way):
    model = nn.Sequential(WAYS[way](nn.Linear(6, 6)), nn.Linear(6, 3))
    bc.quantize_model(model)
    bc.set_precision(model, "w4a4e8")
    row = bc.audit(model)["0"]
    assert not row.is_converted
    assert "parametrized" in row.reason
    model(inputs()[0]).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_parametrizations_that_are_removed_leave_a_layer_that_converts():
    layer = parametrizations.weight_norm(nn.Linear(6, 6))
    parametrize.remove_parametrizations(layer, "weight")
    assert bc.audit(bc.quantize_model(nn.Sequential(layer)))["0"].is_converted


def test_a_converted_layer_that_is_parametrized_multiplies_the_computed_weight():
    layer = nn.Linear(6, 6)
    model = bc.quantize_model(nn.Sequential(layer))
    bc.set_precision(model, "w4a4e8")
    x = inputs()[0]
    before = model(x)
    parametrizations.weight_norm(layer)
    torch.testing.assert_close(model(x), before, rtol=1e-4, atol=1e-5)
    model(x).sum().backward()
    assert layer.parametrizations.weight.original0.grad is not None


def test_a_layer_that_is_being_pruned_stays_float():
    layer = prune.l1_unstructured(nn.Linear(6, 8), "weight", 0.5)
    model = bc.quantize_model(nn.Sequential(layer, nn.Linear(8, 3)))
    row = bc.audit(model)["0"]
    assert not row.is_converted
    assert "pruning" in row.reason


def test_a_converted_layer_can_be_pruned_and_its_mask_keeps_gradients_out():
    model = mlp()
    prune.l1_unstructured(model[0], "weight", 0.5)
    model(inputs()[0]).square().mean().backward()
    mask = model[0].weight_mask
    assert (model[0].weight_orig.grad[mask == 0] == 0).all()
    assert (model[0].weight_orig.grad[mask == 1] != 0).any()


def test_zeros_stay_zeros_where_zero_is_a_code():
    layer = prune.l1_unstructured(nn.Linear(64, 8), "weight", 0.5)
    prune.remove(layer, "weight")
    model = bc.quantize_model(nn.Sequential(layer), bc.quantizers.SBM(zero="integer"))
    bc.set_precision(model, "w8")
    unit = torch.eye(64)
    on_grid = (model(unit) - layer.bias).detach().T
    assert (on_grid[layer.weight == 0].abs() < 1e-6).all()
