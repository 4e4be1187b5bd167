"""What a layer's settings refuse."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.nn.settings import ModelState, alone


def test_bits_beyond_the_given_limit_are_refused_before_anything_is_written() -> None:
    model = bc.quantize_model(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), max_bits=4)
    with pytest.raises(ValueError, match=r"layer '0' was converted with max_bits=4.*w8a8"):
        bc.set_precision(model, {"*": "w2", "0": "w8a8"})
    assert bc.get_precision(model) == bc.Precision()
    bc.set_precision(model, "w4a32")  # float32 is no bits


def test_a_kernel_that_was_asked_for_and_a_quantizer_have_limits_too() -> None:
    model = bc.quantize_model(nn.Sequential(nn.Linear(4, 4)), kernel="int8")
    with pytest.raises(ValueError, match=r"kernel 'int8' carries at most 8 bits and layer '0'"):
        bc.set_precision(model, "w12a12")
    bc.set_precision(model, "w8a8")


def test_a_model_has_bits_while_any_layer_has() -> None:
    state = ModelState()
    state.note_bits("a", True)
    state.note_bits("b", True)
    state.note_bits("a", False)
    assert state.has_bits
    state.note_bits("b", False)
    state.note_bits("never there", False)
    assert not state.has_bits


def test_rules_alone_are_the_same_rules_without_other_processes() -> None:
    together = bc.quantizers.SBM(sync_ranges=True)
    assert alone(together) == bc.quantizers.SBM()
    own = bc.quantizers.SBM()
    assert alone(own) is own
    x = torch.linspace(-1, 1, 5)
    assert alone(together).range_of("act", x) == own.range_of("act", x)
