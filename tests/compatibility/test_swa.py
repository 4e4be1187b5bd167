"""AveragedModel with equal averages, SWALR and update_bn."""

import torch
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn

import bitcycle as bc

from .training import convnet, images, weights


def test_equal_averages_norm_statistics_and_ranges_are_those_of_the_averaged_weights():
    model, batches = convnet(), images(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    average, lr = AveragedModel(model), SWALR(optimizer, swa_lr=0.01, anneal_epochs=2)
    bits = bc.PrecisionScheduler(model, forward="CR:3-8:1", backward=8, total_steps=8)
    kept = []
    for step, x in enumerate(batches):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        bits.step()
        lr.step()
        if step >= 4:
            average.update_parameters(model)
            kept.append(weights(model))
    for ours, *theirs in zip(weights(average.module), *kept, strict=True):
        torch.testing.assert_close(ours, torch.stack(theirs).mean(0))

    bc.set_precision(average, "w8a8")
    update_bn(batches, average)
    bc.calibrate(average, batches)
    convolution, norm = average.module[0], average.module[1]
    assert convolution.act_range[0, 0] == len(batches)
    with torch.no_grad():
        mean = torch.stack([convolution(x).mean((0, 2, 3)) for x in batches]).mean(0)
    torch.testing.assert_close(norm.running_mean, mean, rtol=1e-3, atol=1e-3)
