"""Gradients of gradients are refused: rounding has none."""

import pytest
import torch

import bitcycle as bc

from .training import inputs, mlp


def test_a_second_backward_through_quantized_layers_is_an_error():
    model = mlp()
    x = inputs()[0].requires_grad_()
    (first,) = torch.autograd.grad(model(x).square().mean(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.square().sum().backward()


def test_in_full_precision_it_works():
    model = mlp()
    bc.set_precision(model, "fp32")
    x = inputs()[0].requires_grad_()
    (first,) = torch.autograd.grad(model(x).square().mean(), x, create_graph=True)
    first.square().sum().backward()
    assert x.grad.isfinite().all()


def test_a_graph_that_is_retained_can_be_gone_through_twice():
    model = mlp()
    loss = model(inputs()[0]).square().mean()
    loss.backward(retain_graph=True)
    once = model[0].weight.grad.clone()
    loss.backward()
    torch.testing.assert_close(model[0].weight.grad, 2 * once)
