"""channels_last: the layout is kept, the numbers are those of the default layout."""

import pytest
import torch

import bitcycle as bc
from bitcycle.quantizers import SBM

from .training import assert_close, convnet, images, train

LAYOUT = torch.channels_last


@pytest.mark.parametrize("kernel", ["simulate", "int8"])
def test_training_is_that_of_the_default_layout_but_for_the_noise(kernel):
    rules = SBM(error_rounding="nearest")  # noise is numbered in memory order
    model, twin = convnet(quantizer=rules, kernel=kernel), convnet(quantizer=rules, kernel=kernel)
    model.to(memory_format=LAYOUT)
    for each, layout in ((model, LAYOUT), (twin, torch.contiguous_format)):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.01)
        train(each, optimizer, [x.to(memory_format=layout) for x in images(2)], forward="8")
    assert_close(model, twin, rtol=1e-3)


def test_outputs_and_gradients_are_channels_last():
    model = convnet().to(memory_format=LAYOUT)
    x = images()[0].to(memory_format=LAYOUT).requires_grad_()
    output = model[0](x)
    assert output.is_contiguous(memory_format=LAYOUT)
    output.square().sum().backward()
    assert x.grad.is_contiguous(memory_format=LAYOUT)
    assert str(bc.get_precision(model)) == "w4a4e8"
