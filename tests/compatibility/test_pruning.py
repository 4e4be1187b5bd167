"""torch.nn.utils.prune: prune, make it permanent, convert; or prune what is converted."""

import torch
from torch import nn
from torch.nn.utils import prune

import bitcycle as bc

from .training import inputs, mlp


def test_a_layer_that_is_being_pruned_stays_float():
    layer = prune.l1_unstructured(nn.Linear(6, 8), "weight", 0.5)
    model = bc.quantize_model(nn.Sequential(layer, nn.Linear(8, 3)))
    row = bc.audit(model)["0"]
    assert not row.is_converted
    assert "pruning" in row.reason


def test_a_layer_whose_pruning_is_permanent_is_converted():
    layer = prune.l1_unstructured(nn.Linear(6, 8), "weight", 0.5)
    prune.remove(layer, "weight")
    assert bc.audit(bc.quantize_model(nn.Sequential(layer)))["0"].is_converted
    assert (layer.weight == 0).float().mean() == 0.5


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
