"""torch.amp.GradScaler: a scaled loss has the codes of the loss itself."""

import pytest
import torch

import bitcycle as bc
from bitcycle.health import NonFiniteError

from .training import assert_equal, inputs, mlp, twins

HUGE = 2.0**127  # overflows with the first loss above 2


def scaled_steps(model, scale, steps=6, forward="CR:3-8:1", **options):
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=10_000)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    bits = bc.PrecisionScheduler(model, forward=forward, backward=8, total_steps=steps, **options)
    for x in inputs(steps):
        scaler.scale(model(x).square().sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        bits.step()
    return scaler


def test_a_power_of_two_changes_nothing():
    model, twin = twins(mlp())
    scaled_steps(model, 2.0**10)
    scaled_steps(twin, 1.0)
    assert_equal(model, twin)


def test_an_overflow_is_a_skipped_step_if_the_scheduler_may_ignore_it():
    model, untouched = twins(mlp())
    scaler = scaled_steps(model, HUGE, steps=1, forward=4, nonfinite="ignore")
    assert scaler.get_scale() == HUGE / 2
    assert_equal(model, untouched)


def test_without_that_an_overflow_is_an_error_that_names_the_layer():
    with pytest.raises(NonFiniteError, match=r"layer 2 \(error\)"):
        scaled_steps(mlp(), HUGE, steps=1, forward=4)


def test_float16_autocast_trains():
    model = mlp()
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x = inputs()[0]
    losses = []
    for _ in range(30):
        with torch.autocast("cpu", torch.float16):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
