"""`simulate` multiplies the values of the codes and nothing else."""

from __future__ import annotations

import torch

from bitcycle.kernels import KERNELS, LinearGeometry
from bitcycle.quantizers.base import Quantized

SIMULATE = KERNELS["simulate"]
GEOMETRY = LinearGeometry()


def _codes(codes: list[list[int]], scale: float, offset: float) -> Quantized:
    return Quantized(
        codes=torch.tensor(codes), scale=torch.tensor(scale), offset=torch.tensor(offset)
    )


def test_the_output_is_the_product_of_the_values() -> None:
    a = _codes([[0, 1, 3]], 0.5, -1.0)  # -1, -.5, .5
    w = _codes([[2, 0, 1], [1, 1, 1]], 1.0, 0.0)
    output = SIMULATE.output(GEOMETRY, a, w, torch.tensor([10.0, 0.0]))
    assert output.tolist() == [[10.0 - 2.0 + 0.5, -1.0]]


def test_grad_input_is_error_times_weight() -> None:
    e = _codes([[1, 2]], 1.0, 0.0)
    w = _codes([[2, 0, 1], [1, 1, 1]], 1.0, 0.0)
    grad = SIMULATE.grad_input(GEOMETRY, e, w, torch.Size([1, 3]))
    assert grad.tolist() == [[4.0, 2.0, 3.0]]


def test_grad_weight_is_error_times_act() -> None:
    e = _codes([[1, 2], [0, 1]], 1.0, 0.0)
    a = _codes([[0, 1, 3], [1, 1, 1]], 1.0, 0.0)
    grad = SIMULATE.grad_weight(GEOMETRY, e, a, torch.Size([2, 3]))
    assert grad.tolist() == [[0.0, 1.0, 3.0], [1.0, 3.0, 7.0]]


def test_operands_without_a_grid_are_multiplied_as_they_are() -> None:
    torch.manual_seed(0)
    a, w = torch.randn(4, 3), torch.randn(2, 3)
    output = SIMULATE.output(GEOMETRY, Quantized(values=a), Quantized(values=w), None)
    assert torch.equal(output, torch.nn.functional.linear(a, w))
