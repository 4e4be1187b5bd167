"""The float products of every geometry are torch's, forward and backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bitcycle.kernels import KERNELS, ConvGeometry, Geometry, LinearGeometry, MatMulGeometry
from bitcycle.kernels.geometry import as_rows, multiply_rows, transposed
from bitcycle.quantizers.base import Quantized

SIMULATE = KERNELS["simulate"]


def _check(geometry: Geometry, reference: Tensor, a: Tensor, w: Tensor) -> None:
    """`reference` was computed by torch from a and w, which require gradients."""
    e = torch.randn_like(reference)
    grad_a, grad_w = torch.autograd.grad(reference, (a, w), e)
    a, w = a.detach(), w.detach()

    def multiply(products: Any, a: Any, w: Any, e: Any) -> list[Tensor]:
        return [
            products.output(a, w, None),
            products.grad_input(e, w, a_shape),
            products.grad_weight(e, a, w_shape),
        ]

    a_shape, w_shape = a.shape, w.shape
    ours = multiply(geometry, a, w, e)
    for each, theirs in zip(ours, (reference.detach(), grad_a, grad_w), strict=True):
        torch.testing.assert_close(each, theirs)
    simulated = multiply(SIMULATE.products(geometry), *(Quantized(values=x) for x in (a, w, e)))
    assert all(map(torch.equal, simulated, ours))


def _operands(*shapes: tuple[int, ...]) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def test_linear() -> None:
    for shape in ((3,), (5, 3), (2, 5, 3), (0, 3)):
        a, w = _operands(shape, (4, 3))
        _check(LinearGeometry(), F.linear(a, w), a, w)


def test_matmul_sums_over_broadcast_batches() -> None:
    for a_shape, w_shape in (((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((5, 1, 2, 3), (6, 3, 4))):
        a, w = _operands(a_shape, w_shape)
        _check(MatMulGeometry(), torch.matmul(a, w), a, w)


def test_convolution() -> None:
    for num_dims in (1, 2, 3):
        for groups in (1, 2):
            a, w = _operands((2, 4, *(6, 5, 4)[:num_dims]), (6, 4 // groups, *[3] * num_dims))
            conv = (F.conv1d, F.conv2d, F.conv3d)[num_dims - 1]
            reference = conv(a, w, stride=2, padding=2, dilation=2, groups=groups)
            twos = (2,) * num_dims
            geometry = ConvGeometry(stride=twos, padding=twos, dilation=twos, groups=groups)
            assert geometry.num_dims == num_dims
            _check(geometry, reference, a, w)


def test_transposed_convolution() -> None:
    for num_dims in (1, 2, 3):
        for groups in (1, 2):
            a, w = _operands((2, 4, *(6, 5, 4)[:num_dims]), (4, 6 // groups, *[3] * num_dims))
            conv = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[num_dims - 1]
            reference = conv(a, w, stride=2, padding=1, output_padding=1, groups=groups)
            ones, twos = (1,) * num_dims, (2,) * num_dims
            geometry = ConvGeometry(
                stride=twos, padding=ones, dilation=ones, groups=groups,
                transposed=True, output_padding=ones,
            )  # fmt: skip
            _check(geometry, reference, a, w)


def test_end_padding_adds_zeros_at_the_end_of_a_dimension() -> None:
    a, w = _operands((2, 3, 6, 5), (4, 3, 2, 4))
    reference = F.conv2d(a, w, padding="same")  # rows: 0 before, 1 after; columns: 1 and 2
    geometry = ConvGeometry(
        stride=(1, 1), padding=(0, 1), dilation=(1, 1), groups=1, end_padding=(1, 1)
    )
    _check(geometry, reference, a, w)


def test_the_gradient_of_a_bias_is_the_error_summed_per_output_channel() -> None:
    e = torch.arange(12.0).view(2, 3, 2)
    conv = ConvGeometry(stride=(1,), padding=(0,), dilation=(1,), groups=1)
    assert conv.grad_bias(e).tolist() == [14.0, 22.0, 30.0]
    assert LinearGeometry().grad_bias(e).tolist() == [30.0, 36.0]


@pytest.mark.parametrize("transposed", [False, True])
def test_backward_products_are_channels_last_when_the_error_is(transposed: bool) -> None:
    geometry = ConvGeometry(
        stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=1, transposed=transposed
    )
    torch.manual_seed(0)
    e = torch.randn(2, 4, 6, 6).to(memory_format=torch.channels_last)
    w = torch.randn(4, 4, 3, 3).to(memory_format=torch.channels_last)
    grad = geometry.grad_input(e, w, torch.Size([2, 4, 6, 6]))
    assert grad.is_contiguous(memory_format=torch.channels_last)


def test_channels_have_a_range_each_where_grids_can_have_one() -> None:
    """The dimensions of output channels, of input channels, and the view that has the former."""

    def conv(groups: int, *, transposed: bool = False) -> ConvGeometry:
        return ConvGeometry((1,), (0,), (1,), groups, transposed=transposed)

    w_shape = torch.Size((6, 4, 3))
    for geometry, second, outputs, inputs, view in (
        (LinearGeometry(), "weight", (0,), (1,), (6, 4, 3)),
        (MatMulGeometry(), "act", (), (), (6, 4, 3)),
        (conv(1), "weight", (0,), (1,), (6, 4, 3)),
        (conv(2), "weight", (0,), (), (6, 4, 3)),
        (conv(1, transposed=True), "weight", (0, 2), (), (1, 6, 4, 3)),
        (conv(2, transposed=True), "weight", (0, 2), (), (2, 3, 4, 3)),
    ):
        assert geometry.second == second
        assert (geometry.channel_dims, geometry.input_channel_dims) == (outputs, inputs)
        assert geometry.channel_view(w_shape) == view


def test_a_geometry_is_a_value() -> None:
    first, second = (
        ConvGeometry(stride=(1,), padding=(0,), dilation=(1,), groups=1) for _ in range(2)
    )
    assert first == second
    assert hash(first) == hash(second)


def test_the_multiply_accumulates_are_those_of_the_output() -> None:
    shape = torch.Size
    assert LinearGeometry().macs(shape((2, 5, 3)), shape((4, 3))) == 2 * 5 * 3 * 4
    assert MatMulGeometry().macs(shape((5, 1, 2, 3)), shape((6, 3, 4))) == 5 * 6 * 2 * 3 * 4
    conv = ConvGeometry((2, 1), (1, 0), (1, 2), groups=2, end_padding=(0, 1))
    a, w = torch.empty(2, 4, 9, 8), torch.empty(6, 2, 3, 2)
    output = conv.output(a, w, None)
    assert output.shape[2:] == conv.output_size(a.shape[2:], w.shape[2:])
    assert conv.macs(a.shape, w.shape) == output.numel() * 2 * 3 * 2
    turned = ConvGeometry((2,), (1,), (1,), 1, transposed=True)
    assert turned.macs(shape((2, 3, 5)), shape((3, 4, 3))) == 2 * 3 * 5 * 4 * 3


def test_a_scale_follows_its_dimension() -> None:
    codes = torch.arange(24, dtype=torch.uint8).view(2, 3, 4)
    scale = torch.tensor([1.0, 2.0]).view(2, 1, 1)
    q = Quantized(scale, -scale, codes=codes)
    rows = as_rows(q)
    assert torch.equal(rows.dequantize(), q.dequantize().view(6, 4))
    assert torch.equal(transposed(rows).dequantize(), q.dequantize().view(6, 4).t())
    assert as_rows(rows) is rows
    one = Quantized(torch.tensor(0.5), torch.tensor(1.0), codes=codes)
    assert torch.equal(transposed(one).dequantize(), one.dequantize().transpose(1, 2))


def test_rows_that_are_not_contiguous_are_one_product(monkeypatch):
    torch.manual_seed(0)
    x, w, bias = torch.randn(5, 3, 8).transpose(0, 1), torch.randn(4, 8), torch.randn(4)
    shapes, linear = [], F.linear

    def spy(x, *others):
        shapes.append(x.shape)
        return linear(x, *others)

    monkeypatch.setattr(F, "linear", spy)
    found = multiply_rows(x, w, bias)
    assert shapes == [(15, 8)]  # 3-D, torch multiplies batch by batch
    torch.testing.assert_close(found, x @ w.t() + bias)
    assert multiply_rows(x[:, :0], w).shape == (3, 0, 4)


@pytest.mark.parametrize("level", ["high", "medium"])
def test_products_of_values_are_float32_on_the_cpu_whatever_is_allowed(level):
    x, y = torch.randn(96, 256), torch.randn(64, 256)
    exact = (x.double() @ y.double().t()).float()
    torch.set_float32_matmul_precision(level)
    try:
        product = multiply_rows(x, y)
        assert torch.get_float32_matmul_precision() == level
    finally:
        torch.set_float32_matmul_precision("highest")
    torch.testing.assert_close(product, exact, rtol=1e-4, atol=1e-4)
