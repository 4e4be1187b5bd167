"""The bits that operands really have."""

from __future__ import annotations

import pytest
from torch import nn

import bitcycle as bc
from bitcycle.cost.usage import grad_weight_error_bits, operand_bits, present_bits


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("FW3/BW8", (3, 3, 8)),
        ("w2a4e6", (2, 4, 6)),
        ("w4", (4, 32, 32)),
        ("w23a24e31", (23, 32, 32)),  # from 24 on it is float32
        ("fp32", (32, 32, 32)),
    ],
)
def test_float32_and_what_means_float32_count_as_32(text: str, bits: tuple[int, ...]) -> None:
    layer = bc.quantize_model(nn.Linear(2, 2))
    assert operand_bits(layer, bc.Precision.parse(text)) == bits
    bc.set_precision(layer, text)
    assert present_bits(layer) == bits


def test_a_float_layer_stays_at_32_whatever_it_is_asked() -> None:
    assert operand_bits(nn.Linear(2, 2), bc.Precision.parse("FW3/BW8")) == (32, 32, 32)
    assert present_bits(nn.Linear(2, 2)) == (32, 32, 32)


@pytest.mark.parametrize(
    ("finer", "error", "bits"),
    [(None, 8, 32), (16, 8, 16), (16, 20, 20), (4, 8, 8), (16, 32, 32)],
)
def test_the_error_in_grad_weight_may_have_bits_of_its_own(
    finer: int | None, error: int, bits: int
) -> None:
    layer = bc.quantize_model(nn.Linear(2, 2), bc.quantizers.SBMFull(grad_weight_error=finer))
    assert grad_weight_error_bits(layer, (8, 8, error)) == bits


def test_most_rules_have_one_error() -> None:
    for layer in (nn.Linear(2, 2), bc.quantize_model(nn.Linear(2, 2))):
        assert grad_weight_error_bits(layer, (4, 4, 8)) == 8
