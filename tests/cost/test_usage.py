"""The bits that operands really have."""

from __future__ import annotations

import pytest
from torch import nn

import bitcycle as bc
from bitcycle.cost.usage import operand_bits, present_bits


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
