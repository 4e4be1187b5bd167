"""Counts of linear layers, convolutions and named products, by hand and by torch's flop counter."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.cost import count_macs
from tests.cost.flops import counted_macs, measured_macs


def only_row(model: nn.Module, *inputs: torch.Tensor):
    (row,) = count_macs(model, inputs).layers
    return row


def test_a_linear_layer_multiplies_rows_times_in_times_out() -> None:
    row = only_row(nn.Linear(5, 3), torch.ones(2, 7, 5, requires_grad=True))
    assert row.macs == {"output": 210, "grad_input": 210, "grad_weight": 210}  # 2 x 7 x 5 x 3
    # act 2 x 7 x 5, weight 5 x 3, error 2 x 7 x 3
    assert [p.elements for p in row.products] == [(70, 15), (42, 15), (42, 70)]


def test_a_vector_without_a_batch_is_one_row() -> None:
    assert only_row(nn.Linear(5, 3), torch.ones(5)).output == 15


def test_a_convolution_multiplies_outputs_times_channels_times_kernel() -> None:
    # (2, 6, 8, 8) -> (2, 4, 4, 4): 128 outputs x 6 channels x 9 taps
    row = only_row(nn.Conv2d(6, 4, 3, stride=2, padding=1), torch.ones(2, 6, 8, 8))
    assert row.macs == {"output": 6912, "grad_input": 0, "grad_weight": 6912}


def test_groups_divide_the_input_channels() -> None:
    # (2, 6, 8, 8) -> (2, 4, 6, 6): 288 outputs x 3 channels of the group x 9 taps; the flop counter
    # takes grad_weight times groups here
    row = only_row(nn.Conv2d(6, 4, 3, groups=2), torch.ones(2, 6, 8, 8, requires_grad=True))
    assert row.macs == {"output": 7776, "grad_input": 7776, "grad_weight": 7776}


def test_a_depthwise_convolution_sums_over_its_taps_only() -> None:
    row = only_row(nn.Conv2d(8, 8, 3, padding=1, groups=8), torch.ones(1, 8, 5, 5))
    assert row.output == 8 * 25 * 9


def test_a_transposed_convolution_spreads_every_input_element() -> None:
    # 2 x 6 x 5 x 5 = 300 inputs, each to 4 / 2 channels x 9 taps
    row = only_row(nn.ConvTranspose2d(6, 4, 3, stride=2, groups=2), torch.ones(2, 6, 5, 5))
    assert row.output == 5400


def test_a_matmul_has_two_activations_and_broadcasts() -> None:
    a, b = torch.ones(2, 3, 4, 5, requires_grad=True), torch.ones(3, 5, 6, requires_grad=True)
    row = only_row(bc.MatMul(), a, b)
    # 2 x 3 batches of 4 x 5 x 6; 120 and 90 elements in, 144 out
    assert row.macs == {"output": 720, "grad_input": 720, "grad_weight": 720}
    assert [(p.roles, p.elements) for p in row.products] == [
        (("act", "act"), (120, 90)),
        (("error", "act"), (144, 90)),
        (("error", "act"), (144, 120)),
    ]


@pytest.mark.parametrize(
    ("a", "b", "macs"), [((4,), (4,), 4), ((3, 4), (4,), 12), ((4,), (2, 4, 5), 40)]
)
def test_a_matmul_of_vectors_counts_every_multiplication(a, b, macs) -> None:
    assert only_row(bc.MatMul(), torch.ones(a), torch.ones(b)).output == macs


def test_a_bilinear_layer_is_two_products() -> None:
    inputs = torch.ones(7, 3, requires_grad=True), torch.ones(7, 4, requires_grad=True)
    row = only_row(nn.Bilinear(3, 4, 5), *inputs)
    # W x2: 7 x 5 x 3 x 4 = 420, then times x1: 7 x 5 x 3 = 105
    assert row.macs == {"output": 525, "grad_input": 525, "grad_weight": 525}


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Linear(6, 5), (4, 6)),
        (nn.Linear(6, 5, bias=False), (4, 3, 6)),
        (nn.Conv1d(4, 6, 3, stride=2, padding=1), (2, 4, 9)),
        (nn.Conv1d(4, 6, 3, padding="same", dilation=2), (2, 4, 9)),
        (nn.Conv2d(4, 6, (3, 2), stride=(1, 2), padding=(2, 1), dilation=(2, 1)), (2, 4, 9, 8)),
        (nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), (2, 4, 9, 8)),
        (nn.Conv2d(4, 6, 3), (4, 9, 8)),
        (nn.Conv3d(2, 3, 2, stride=2), (2, 2, 4, 5, 6)),
        (nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1), (2, 4, 9)),
        (nn.ConvTranspose2d(4, 6, 3, stride=2, dilation=2), (2, 4, 5, 6)),
        (nn.ConvTranspose3d(2, 3, 2, stride=2), (2, 2, 3, 4, 5)),
    ],
)
def test_the_flop_counter_agrees(model: nn.Module, shape: tuple[int, ...]) -> None:
    for requires_grad in (False, True):
        x = torch.ones(shape, requires_grad=requires_grad)
        expected = measured_macs(model, x)
        assert counted_macs(model, x) == expected
        bc.quantize_model(model)
        assert counted_macs(model, x) == expected
        bc.unquantize_model(model)
