"""Converted nn.Linear and MatMul against the oracle."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import bitcycle as bc

from .. import naive
from .layers import assert_products_close, convert, expected_products, run


def _make(bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(7, 5, bias=bias)


def test_the_three_products_equal_the_oracle() -> None:
    for bits in range(2, 9):
        for shape in ((7,), (1, 7), (6, 7), (2, 3, 7), (2, 3, 2, 7)):
            for bias in (True, False):
                layer = convert(_make(bias), f"w{bits}a{bits}e{bits}")
                x = torch.randn(shape)
                e = torch.randn_like(layer(x))
                expected = expected_products(layer, x, e, weight=bits, act=bits, error=bits)
                assert_products_close(run(layer, x, e), expected)


def test_evaluation_uses_the_running_range_and_still_quantizes_the_error() -> None:
    for bits in range(2, 9):
        layer = convert(_make(), f"w{bits}a{bits}e{bits}")
        layer(torch.linspace(-1.0, 0.5, 14).view(2, 7))
        layer.eval()
        x, e = torch.randn(6, 7), torch.randn(6, 5)
        expected = expected_products(
            layer, x, e, weight=bits, act=bits, error=bits, within=(-1.0, 0.5)
        )  # fmt: skip
        assert_products_close(run(layer, x, e), expected)


def test_a_transposed_input_and_an_expanded_error_change_nothing() -> None:
    layer = convert(_make(), "w4a4e4")
    x, e = torch.randn(7, 6).t(), torch.randn(5).expand(6, 5)
    assert_products_close(run(layer, x, e), run(layer, x.contiguous(), e.contiguous()))


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_sizes_of_zero_work_as_in_torch() -> None:
    for inputs, outputs, batch in ((0, 3, 2), (3, 0, 2), (3, 4, 0)):
        float_layer = nn.Linear(inputs, outputs)
        x = torch.randn(batch, inputs)
        expected = run(float_layer, x)
        result = run(convert(float_layer, "w4a4e4"), x)
        assert result.output.shape == expected.output.shape
        assert result.grad_input.shape == expected.grad_input.shape
        assert not result.grad_weight.any()


def test_two_layers_in_a_row_see_each_other_s_quantized_gradients() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 6), nn.Linear(6, 5))
    for layer in model:
        convert(layer, "w4a4e4")
    x, e = torch.randn(3, 7, requires_grad=True), torch.randn(3, 5)
    model(x).backward(e)
    bits = {"weight": 4, "act": 4, "error": 4}
    hidden = expected_products(model[0], x.detach(), torch.zeros(3, 6), **bits).output.float()
    second = expected_products(model[1], hidden, e, **bits)
    first = expected_products(model[0], x.detach(), second.grad_input.float(), **bits)
    torch.testing.assert_close(model[1].weight.grad, second.grad_weight.float())
    torch.testing.assert_close(model[0].weight.grad, first.grad_weight.float())
    torch.testing.assert_close(x.grad, first.grad_input.float())
    assert bc.get_precision(model) == bc.Precision(weight=4, act=4, error=4)


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


def _run_matmul(layer: bc.MatMul, a: Tensor, b: Tensor, e: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    a, b = a.clone().requires_grad_(), b.clone().requires_grad_()
    output = layer(a, b)
    output.backward(e)
    assert a.grad is not None
    assert b.grad is not None
    return output.detach(), a.grad, b.grad


def _expected_matmul(
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


def test_products_of_activations_equal_the_oracle() -> None:
    for bits in range(2, 9):
        for a_shape, b_shape in SHAPES:
            torch.manual_seed(0)
            layer = convert(bc.MatMul(), f"a{bits}e{bits}")
            a, b = torch.randn(a_shape), torch.randn(b_shape)
            e = torch.randn_like(torch.matmul(a, b))
            if e.dim() == 0:
                assert layer(a, b).shape == ()
            for ours, theirs in zip(
                _run_matmul(layer, a, b, e), _expected_matmul(a, b, e, bits, bits), strict=True
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
    turned = _run_matmul(layer, q, k.transpose(-1, -2), e)
    plain = _run_matmul(layer, q, k.transpose(-1, -2).contiguous(), e)
    for one, other in zip(turned, plain, strict=True):
        torch.testing.assert_close(one, other)


def test_the_same_tensor_on_both_sides_gets_both_gradients() -> None:
    torch.manual_seed(0)
    layer = convert(bc.MatMul(), "a4e4")
    x, e = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)
    layer(x, x).backward(e)
    _, first, second = _expected_matmul(x.detach(), x.detach(), e, 4, 4)
    torch.testing.assert_close(x.grad, (first + second).float())
