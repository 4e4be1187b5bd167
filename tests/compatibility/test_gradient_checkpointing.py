"""torch.utils.checkpoint: the second forward pass counts nothing twice."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from .training import assert_equal, convnet, images, inputs, mlp, train, twins


class Checkpointed(nn.Module):
    def __init__(self, model, reentrant):
        super().__init__()
        self.model, self.reentrant = [model], reentrant

    def forward(self, x):
        return checkpoint(self.model[0], x.requires_grad_(), use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])
def test_a_run_is_the_run_without_it_to_the_bit(reentrant):
    model, twin = twins(mlp())
    for each, run in ((model, Checkpointed(model, reentrant)), (twin, twin)):
        train(each, torch.optim.SGD(each.parameters(), lr=0.05), inputs(), run=run)
    assert_equal(model, twin)
    for one, two in zip(model.buffers(), twin.buffers(), strict=True):
        assert torch.equal(one, two)


def test_segments_of_a_sequential_do_so_too():
    model, twin = twins(convnet())
    model[1].momentum = twin[1].momentum = 0.0  # BatchNorm itself counts a batch twice
    run = [lambda x: checkpoint_sequential(model, 3, x.requires_grad_(), use_reentrant=False), twin]
    for each, call in zip((model, twin), run, strict=True):
        train(each, torch.optim.SGD(each.parameters(), lr=0.05), images(), run=call)
    assert_equal(model, twin)
