"""torch.autocast in bfloat16: float parts follow it, grids stay float32."""

import torch
from torch import nn

import bitcycle as bc

from .training import convnet, images, inputs, mlp, train, twins


def test_products_on_grids_are_those_without_autocast():
    model, twin = twins(mlp())
    x = inputs()[0]
    with torch.autocast("cpu", torch.bfloat16):
        output = model(x)
    assert torch.equal(output, twin(x))


def test_float_layers_and_full_precision_follow_autocast():
    model = bc.quantize_model(nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)), skip=["1"])
    bc.set_precision(model, "w4a4e8")
    x = inputs()[0]
    with torch.autocast("cpu", torch.bfloat16):
        assert model(x).dtype == torch.bfloat16
        with bc.at_precision(model, "fp32"):
            assert model[0](x).dtype == torch.bfloat16


def test_training_under_autocast_learns_and_keeps_float32_weights():
    model = convnet()
    batches = images(1) * 30
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)

    class Autocast(nn.Module):
        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return model(x)

    before = model(batches[0]).square().mean().item()
    train(model, optimizer, batches, run=Autocast())
    assert model(batches[0]).square().mean().item() < 0.5 * before
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
