"""torch.jit: script is refused by torch, trace records one precision."""

import warnings

import pytest
import torch
from torch import nn

import bitcycle as bc

from .training import inputs, mlp


def test_a_scripted_layer_stays_float_and_the_audit_says_what_to_do():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.Sequential(torch.jit.script(nn.Linear(6, 8)), nn.Linear(8, 3))
    bc.quantize_model(model)
    assert "convert before torch.jit.script" in bc.audit(model)["0"].reason


def test_a_converted_model_cannot_be_scripted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises((RuntimeError, ValueError)):
            torch.jit.script(mlp())


def test_a_trace_has_the_bits_it_was_made_at():
    model = mlp(kernel="simulate")
    bc.calibrate(model, inputs())
    model.eval()
    x = inputs()[0]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(model, x, check_trace=False)
        torch.testing.assert_close(traced(x), model(x))
