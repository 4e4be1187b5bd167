"""The same training with both kernels: the same accuracy within the noise of a seed."""

import pytest
import torch
import torch.nn.functional as F

import bitcycle as bc
from tests.bitcycle_lab.e2e.test_digits import BATCH, NUM_TRAIN, convnet, digits  # noqa: F401  (a fixture)

pytestmark = pytest.mark.slow
STEPS = 150


def train(data, kernel, *, forward="CR:3-8:3", seed=0):
    """Losses of the first three steps, and percent right on the test images."""
    x, y, x_test, y_test = data
    torch.manual_seed(seed)
    model = bc.quantize_model(convnet(), kernel=kernel)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    lr = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    bits = bc.PrecisionScheduler(model, forward=forward, backward=8, total_steps=STEPS)
    losses = []
    for step in range(STEPS):
        first = step * BATCH % (NUM_TRAIN - BATCH)
        loss = F.cross_entropy(model(x[first : first + BATCH]), y[first : first + BATCH])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        lr.step()
        bits.step()
        losses.append(loss.item())
    with bc.at_precision(model.eval(), bits.top), torch.no_grad():
        right = (model(x_test).argmax(1) == y_test).float().mean().item()
    return losses[:3], 100 * right


def test_native_trains_as_simulate_does(digits):  # noqa: F811
    wanted_losses, wanted = train(digits, "simulate")
    losses, right = train(digits, "native")
    assert wanted > 90
    assert right == pytest.approx(wanted, abs=3)  # 597 images: 0.9 points is one deviation
    for ours, theirs in zip(losses, wanted_losses, strict=True):
        assert ours == pytest.approx(theirs, rel=0.01)
    assert train(digits, "native") == (losses, right)  # and again, to the bit
