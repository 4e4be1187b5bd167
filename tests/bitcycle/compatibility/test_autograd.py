"""torch.func, and gradients of gradients, which are refused: rounding has none."""

import pytest
import torch
from torch.func import functional_call, grad, vmap

import bitcycle as bc

from .training import inputs, mlp


def test_a_gradient_penalty_is_an_error_too_and_not_left_out_without_a_word():
    """The gradient that comes in is a constant here, on which torch alone would refuse nothing."""
    for kernel in ("simulate", "native"):
        x = inputs()[0].requires_grad_()
        (first,) = torch.autograd.grad(mlp(kernel=kernel)(x).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            (first.norm(2, 1) - 1).square().mean().backward()


def test_of_attention_as_well():
    model = bc.quantize_model(torch.nn.MultiheadAttention(6, 2), kernel="native")
    bc.set_precision(model, "w8a8e8")
    x, mask = inputs()[0][:, None].requires_grad_(), torch.zeros(16, 16, requires_grad=True)
    output, _ = model(x, x, x, attn_mask=mask)
    for first in torch.autograd.grad(output.sum(), (x, mask), create_graph=True):
        with pytest.raises(RuntimeError, match="once_differentiable"):
            first.square().sum().backward(retain_graph=True)


def test_and_of_recurrent_layers():
    model = bc.quantize_model(torch.nn.LSTM(6, 4))
    bc.set_precision(model, "w8a8e8")
    x, h, c = inputs()[0][:, None].requires_grad_(), *torch.zeros(2, 1, 1, 4, requires_grad=True)
    output, _ = model(x, (h, c))
    for first in torch.autograd.grad(output.sum(), (x, h, c), create_graph=True):
        with pytest.raises(RuntimeError, match="once_differentiable"):
            first.square().sum().backward(retain_graph=True)


def test_in_full_precision_it_works():
    model = mlp()
    bc.set_precision(model, "fp32")
    x = inputs()[0].requires_grad_()
    (first,) = torch.autograd.grad(model(x).square().mean(), x, create_graph=True)
    first.square().sum().backward()
    assert x.grad.isfinite().all()


def loss(model, x):
    def of(parameters):
        return functional_call(model, parameters, (x,)).square().mean()

    return of


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
