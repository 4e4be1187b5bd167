"""torch.nn.utils.parametrizations: such layers stay float and the audit says so."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import bitcycle as bc

from .training import inputs

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


def test_a_model_of_such_layers_only_is_an_error_that_says_why():
    with pytest.raises(ValueError, match="nothing to convert.*parametrized"):
        bc.quantize_model(nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 6))))


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
