"""Gradient accumulation: micro-batches add up, each with noise of its own."""

import torch

import bitcycle as bc

from .training import inputs, mlp


def gradients(model, batches):
    model.zero_grad()
    for x in batches:
        model(x).square().mean().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def test_the_sum_is_that_of_the_micro_batches():
    whole, parts = mlp(), mlp()
    summed = gradients(whole, inputs(3))
    single = [gradients(parts, [x]) for x in inputs(3)]  # the noise counts calls, not zero_grad
    torch.testing.assert_close(summed, sum(single))


def test_equal_micro_batches_have_different_noise():
    model = mlp()
    x = inputs()[0]
    assert not torch.equal(gradients(model, [x]), gradients(model, [x]))


def test_the_scheduler_steps_with_the_optimizer_not_with_the_micro_batch():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    bits = bc.PrecisionScheduler(model, forward="CR:3-8:1", backward=8, total_steps=6)
    seen = []
    for _ in range(6):
        for x in inputs(4):
            (model(x).square().mean() / 4).backward()
            seen.append(model[0].precision.weight)
        optimizer.step()
        optimizer.zero_grad()
        bits.step()
    assert all(len(set(seen[start : start + 4])) == 1 for start in range(0, 24, 4))
    assert len(set(seen)) > 1
