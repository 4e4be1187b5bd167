"""torch.jit: script is refused by torch, a trace reads the bits of its model."""

import io
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


def test_a_trace_reads_the_bits_of_its_model_and_cannot_be_saved():
    model = mlp(kernel="simulate")
    bc.calibrate(model, inputs())
    model.eval()
    x = inputs()[0]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(model, x, check_trace=False)
        for bits in ("w4a4", "w2a2", "w8a8"):
            bc.set_precision(model, bits)
            torch.testing.assert_close(traced(x), model(x))
        with pytest.raises(RuntimeError, match="Could not export Python function"):
            torch.jit.save(traced, io.BytesIO())
