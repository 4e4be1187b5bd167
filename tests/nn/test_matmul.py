"""The converted MatMul against the oracle."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import bitcycle as bc

from .. import naive
from .layers import convert

SHAPES = [
    ((3, 4), (4, 5)),
    ((2, 3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (6, 4, 5)),
    ((3, 4), (2, 6, 4, 5)),
    ((2, 6, 3, 4), (1, 4, 5)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((4,), (4,)),
    ((2, 6, 3, 4), (4,)),
    ((4,), (2, 6, 4, 5)),
]


def _run(layer: bc.MatMul, a: Tensor, b: Tensor, e: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    a, b = a.clone().requires_grad_(), b.clone().requires_grad_()
    output = layer(a, b)
    output.backward(e)
    assert a.grad is not None
    assert b.grad is not None
    return output.detach(), a.grad, b.grad


def _expected(
    a: Tensor, b: Tensor, e: Tensor, act: int | None, error: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    qa, qb, qe = naive.per_tensor(a, act), naive.per_tensor(b, act), naive.per_tensor(e, error)
    if b.dim() == 1:
        qe = qe.unsqueeze(-1)
    if a.dim() == 1:
        qe = qe.unsqueeze(-2)
    rows = qa.unsqueeze(0) if a.dim() == 1 else qa
    columns = qb.unsqueeze(1) if b.dim() == 1 else qb
    p = naive.matmul(rows, columns, qe)
    return p.output.reshape(e.shape), p.grad_input.view(a.shape), p.grad_weight.view(b.shape)


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize(("a_shape", "b_shape"), SHAPES)
def test_the_three_products_equal_the_oracle(
    a_shape: tuple[int, ...], b_shape: tuple[int, ...], bits: int
) -> None:
    torch.manual_seed(0)
    layer = convert(bc.MatMul(), f"a{bits}e{bits}")
    a, b = torch.randn(a_shape), torch.randn(b_shape)
    e = torch.randn_like(torch.matmul(a, b))
    if e.dim() == 0:
        assert layer(a, b).shape == ()
    for ours, theirs in zip(
        _run(layer, a, b, e), _expected(a, b, e, bits, bits), strict=True
    ):  # fmt: skip
        torch.testing.assert_close(ours, theirs.float(), rtol=1e-5, atol=1e-5)


def test_both_operands_are_activations_with_running_ranges_of_their_own() -> None:
    layer = convert(bc.MatMul(), "a4e4")
    layer(torch.tensor([[0.0, 1.0]]), torch.tensor([[-3.0], [5.0]]))
    assert layer.act_range.tolist() == [[1.0, 0.0, 1.0], [1.0, -3.0, 8.0]]
    layer.eval()
    # evaluation clips each operand to its own range: 2 -> 1 and -9 -> -3
    assert layer(torch.tensor([[0.0, 2.0]]), torch.tensor([[5.0], [-9.0]])).item() == -3.0


def test_weight_bits_have_no_effect_on_a_product_of_activations() -> None:
    layer = convert(bc.MatMul(), "w2")
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    assert torch.equal(layer(a, b), torch.matmul(a, b))


def test_a_transposed_operand_changes_nothing() -> None:
    torch.manual_seed(0)
    layer = convert(bc.MatMul(), "a4e4")
    q, k = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    e = torch.randn(2, 3, 5)
    turned = _run(layer, q, k.transpose(-1, -2), e)
    plain = _run(layer, q, k.transpose(-1, -2).contiguous(), e)
    for one, other in zip(turned, plain, strict=True):
        torch.testing.assert_close(one, other)


def test_the_same_tensor_on_both_sides_gets_both_gradients() -> None:
    torch.manual_seed(0)
    layer = convert(bc.MatMul(), "a4e4")
    x, e = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)
    layer(x, x).backward(e)
    _, first, second = _expected(x.detach(), x.detach(), e, 4, 4)
    torch.testing.assert_close(x.grad, (first + second).float())
