"""Training at low precision on real data reaches float32's accuracy."""

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bitcycle as bc
from bitcycle.quantizers import QUANTIZERS

SEEDS = (0, 1, 2)
EPOCHS, BATCH = 8, 64
NUM_TRAIN = 1200


@pytest.fixture(scope="module")
def digits():
    """scikit-learn's 1797 images of 8 x 8: 1200 to train on, the rest to test."""
    data = pytest.importorskip("sklearn.datasets").load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(data.images, dtype=torch.float32)[order, None] / 16  # (N, 1, 8, 8)
    y = torch.tensor(data.target)[order]
    return x[:NUM_TRAIN], y[:NUM_TRAIN], x[NUM_TRAIN:], y[NUM_TRAIN:]


def convnet():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1, stride=2, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


def accuracy(digits, seed, forward, backward, quantizer="sbm", epochs=EPOCHS):
    """Percent right on the test images after training; evaluated at the schedule's top."""
    x, y, x_test, y_test = digits
    torch.manual_seed(seed)
    model = bc.quantize_model(convnet(), quantizer, seed=seed)
    total_steps = epochs * (NUM_TRAIN // BATCH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    lr = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total_steps)
    bits = bc.PrecisionScheduler(model, forward=forward, backward=backward, total_steps=total_steps)
    for _ in range(epochs):
        for batch in torch.randperm(NUM_TRAIN).split(BATCH)[: NUM_TRAIN // BATCH]:
            wanted = bits.needs
            with bc.collect(model) if "noise_norm" in wanted else nullcontext() as statistics:
                loss = F.cross_entropy(model(x[batch]), y[batch])
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            lr.step()
            told = statistics.gradient_noise() if "noise_norm" in wanted else {}
            bits.step({"loss": loss.item(), **told} if wanted else None)
    with bc.at_precision(model.eval(), bits.top), torch.no_grad():
        return 100 * (model(x_test).argmax(1) == y_test).float().mean().item()


def mean(values):
    return sum(values) / len(values)


def test_a_short_run_of_cyclic_precision_learns_the_digits(digits):
    assert accuracy(digits, 0, "CR:3-8:4", 8, epochs=4) > 93


def test_two_bits_throughout_do_not_reach_it(digits):
    """What the test above would not notice if bits had no effect, this one does."""
    assert accuracy(digits, 0, 2, 2, epochs=4) < 90


@pytest.fixture(scope="module")
def float32(digits):
    return mean([accuracy(digits, seed, "fp32", "fp32") for seed in SEEDS])


@pytest.mark.slow
def test_cyclic_precision_reaches_float32_within_two_points(digits, float32):
    assert float32 > 95
    assert mean([accuracy(digits, seed, "CR:3-8:8", 8) for seed in SEEDS]) > float32 - 2


@pytest.mark.slow
@pytest.mark.parametrize("quantizer", QUANTIZERS.names())
def test_every_quantizer_reaches_float32_within_three_points_at_8_bits(digits, float32, quantizer):
    assert mean([accuracy(digits, seed, 8, 8, quantizer) for seed in SEEDS]) > float32 - 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::bitcycle.warnings.BitcycleWarning")  # too short for some
@pytest.mark.parametrize(
    "form", [info.form for info in bc.list_schedules() if info.form not in ("fp32", "8")]
)
def test_every_schedule_learns_the_digits(digits, form):
    shorter = form.replace(":32", ":4").replace("window=40", "window=4")  # the run has 72 steps
    assert accuracy(digits, 0, shorter, 8, epochs=4) > 80
