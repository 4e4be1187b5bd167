"""The quantizer boundary: `Quantized` and the registry of rules."""

from __future__ import annotations

import pytest
import torch

from bitcycle.quantizers import SBM
from bitcycle.quantizers.base import QUANTIZERS, Quantized, make_quantizer


def test_codes_are_multiplied_out() -> None:
    codes = torch.tensor([0, 3, 7], dtype=torch.uint8)
    quantized = Quantized(codes=codes, scale=torch.tensor(0.5), offset=torch.tensor(-1.0))
    assert quantized.dequantize().tolist() == [-1.0, 0.5, 2.5]
    assert quantized.integer_codes() is codes


def test_values_give_their_codes_back() -> None:
    values = torch.tensor([-1.0, 0.5, 2.5])
    quantized = Quantized(values=values, scale=torch.tensor(0.5), offset=torch.tensor(-1.0))
    assert quantized.dequantize() is values
    assert quantized.integer_codes().tolist() == [0.0, 3.0, 7.0]


def test_scales_per_channel_broadcast() -> None:
    quantized = Quantized(
        codes=torch.tensor([[1, 2], [1, 2]]),
        scale=torch.tensor([[1.0], [10.0]]),
        offset=torch.tensor([[0.0], [5.0]]),
    )
    assert quantized.dequantize().tolist() == [[1.0, 2.0], [15.0, 25.0]]


def test_a_float_tensor_has_no_codes() -> None:
    quantized = Quantized(values=torch.ones(2))
    assert torch.equal(quantized.dequantize(), torch.ones(2))
    with pytest.raises(ValueError, match="no codes; give its role bits first"):
        quantized.integer_codes()


def test_a_quantizer_is_made_from_its_name_or_taken_as_it_is() -> None:
    assert make_quantizer("sbm") == SBM()
    rule = SBM(zero="integer")
    assert make_quantizer(rule) is rule


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown quantizer 'smb'; known: .*sbm.*did you mean"):
        make_quantizer("smb")


@pytest.mark.parametrize("wrong", [SBM, 8, None])
def test_what_is_neither_a_name_nor_an_object_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="a name or an object like bc.quantizers.SBM"):
        make_quantizer(wrong)  # type: ignore[arg-type]


def test_every_registered_quantizer_can_be_made() -> None:
    assert "sbm" in QUANTIZERS
    for name, kind in QUANTIZERS.items():
        rule = kind()
        assert rule.roles <= {"weight", "act", "error", "grad"}, name
        assert hash(rule) == hash(kind())
