"""torch.func: in full precision; with bits torch refuses."""

import pytest
import torch
from torch.func import functional_call, grad, vmap

import bitcycle as bc

from .training import inputs, mlp


def loss(model, x):
    def of(parameters):
        return functional_call(model, parameters, (x,)).square().mean()

    return of


def test_functional_call_takes_other_weights_at_any_bits():
    model = mlp()
    x = inputs()[0]
    parameters = {name: 2 * value.detach() for name, value in model.named_parameters()}
    output = functional_call(model, parameters, (x,))
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(2)
    assert torch.equal(output, model(x))


def test_grad_and_vmap_work_in_full_precision():
    model = mlp()
    bc.set_precision(model, "fp32")
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    x = inputs()[0]
    found = grad(loss(model, x))(parameters)
    model(x).square().mean().backward()
    for name, value in model.named_parameters():
        torch.testing.assert_close(found[name], value.grad)
    stacked = {name: torch.stack([value, value]) for name, value in parameters.items()}
    outputs = vmap(lambda p: functional_call(model, p, (x,)))(stacked)
    torch.testing.assert_close(outputs[0], outputs[1])


def test_with_bits_torch_refuses():
    model = mlp()
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    with pytest.raises(RuntimeError, match="transform"):
        grad(loss(model, inputs()[0]))(parameters)
