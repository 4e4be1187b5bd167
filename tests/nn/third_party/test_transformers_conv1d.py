"""Hugging Face's Conv1D: a linear layer whose weight is stored (in, out)."""

import pytest
import torch
from torch import nn

import bitcycle as bc
from tests.toys import randn

pytorch_utils = pytest.importorskip("transformers.pytorch_utils", reason="needs transformers")


def pair(precision):
    """A converted Conv1D and the nn.Linear with the same parameters."""
    torch.manual_seed(0)
    module, linear = pytorch_utils.Conv1D(6, 4), nn.Linear(4, 6)
    with torch.no_grad():
        module.weight.copy_(linear.weight.t())
        module.bias.copy_(linear.bias)
    for layer in (module, linear):
        bc.quantize_model(layer, bc.quantizers.SBM(error_rounding="nearest"), kernel="simulate")
        bc.set_precision(layer, precision)
    return module, linear


@pytest.mark.parametrize("precision", ["w3a3e3", "w8a8e8", "w2", "e4"])
def test_it_computes_what_a_linear_layer_with_the_same_weight_does(precision):
    module, linear = pair(precision)
    results = []
    for layer in (module, linear):
        x = randn(2, 3, 4).requires_grad_()
        output = layer(x)
        grads = torch.autograd.grad(output, (x, layer.weight, layer.bias), randn(2, 3, 6, seed=2))
        results.append([output, *grads])
    results[0][2] = results[0][2].t()
    for ours, theirs in zip(*results, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)


def test_its_line_shows_sizes_and_bits():
    module, _ = pair("w3a3e3")
    assert repr(module) == "QuantizedConv1D(nf=6, nx=4, precision=w3a3e3, quantizer=SBM)"
