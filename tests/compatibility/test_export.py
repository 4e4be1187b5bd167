"""torch.export of a converted model in evaluation mode."""

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
