"""Fused, foreach and for-loop optimizers of torch: Parameters are the float model's own."""

import pytest
import torch

import bitcycle as bc

from .training import assert_close, convnet, images, train

OPTIMIZERS = {
    "SGD": lambda p, **way: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, **way),
    "Adam": lambda p, **way: torch.optim.Adam(p, lr=0.01, weight_decay=0.01, **way),
    "AdamW": lambda p, **way: torch.optim.AdamW(p, lr=0.01, amsgrad=True, **way),
}
WAYS = {"fused": {"fused": True}, "foreach": {"foreach": True}}


def trained(name, **way):
    model = convnet()
    train(model, OPTIMIZERS[name](model.parameters(), **way), images())
    return model


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_way_is_the_for_loop_up_to_rounding(name, way):
    assert_close(trained(name, **WAYS[way]), trained(name, foreach=False), rtol=1e-3)


def test_an_optimizer_built_before_the_conversion_trains_the_converted_model():
    model = bc.unquantize_model(convnet())
    optimizer = OPTIMIZERS["AdamW"](model.parameters())
    bc.quantize_model(model)
    train(model, optimizer, images())
    assert_close(model, trained("AdamW"))
