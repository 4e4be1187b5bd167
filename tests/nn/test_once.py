"""Backward passes that refuse a derivative of their own."""

from typing import Any

import pytest
import torch
from torch import Tensor

from bitcycle.nn.once import differentiable_once


class _Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 2 * grad


def _twice(x: Tensor) -> Tensor:
    output: Tensor = _Twice.apply(x)  # type: ignore[no-untyped-call]
    return output


def test_the_first_derivative_is_that_of_the_function() -> None:
    x = torch.ones(3, requires_grad=True)
    _twice(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0] * 3
    assert not x.grad.requires_grad


@pytest.mark.parametrize(
    "weight", [1.0, torch.ones((), requires_grad=True)], ids=["number", "leaf"]
)
def test_a_second_one_is_an_error_whether_the_incoming_gradient_is_constant_or_not(
    weight: float | Tensor,
) -> None:
    x = torch.ones(3, requires_grad=True)
    (first,) = torch.autograd.grad((_twice(x) * weight).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.square().sum().backward()
