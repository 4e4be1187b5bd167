"""torch.export of a converted model in evaluation mode."""

import copy
import io

import torch

import bitcycle as bc

from .training import inputs, mlp


def test_an_exported_program_computes_what_the_model_does():
    model = mlp(kernel="simulate")
    bc.calibrate(model, inputs())
    model.eval()
    x = inputs()[0]
    with torch.no_grad():
        program = torch.export.export(model, (x,))
        torch.testing.assert_close(program.module()(x), model(x))


def test_a_program_has_the_bits_it_was_saved_at_and_reads_those_of_its_model_until_then():
    model = mlp(kernel="simulate")
    bc.calibrate(model, inputs())
    model.eval()
    x = inputs()[0]
    with torch.no_grad():
        program, apart = (torch.export.export(m, (x,)) for m in (model, copy.deepcopy(model)))
        expected = model(x)
        buffer = io.BytesIO()
        torch.export.save(program, buffer)
        buffer.seek(0)
        bc.set_precision(model, "w2a2")
        for other in (torch.export.load(buffer), apart):
            torch.testing.assert_close(other.module()(x), expected)
        torch.testing.assert_close(program.module()(x), model(x))
        assert not torch.allclose(model(x), expected, rtol=1e-3)
