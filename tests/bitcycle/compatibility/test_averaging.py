"""Averages of weights: AveragedModel, SWALR and update_bn, copies averaged by hand."""

import copy

import torch
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

import bitcycle as bc

from .training import convnet, images, inputs, mlp, train, weights

DECAY = 0.5


def test_the_average_is_that_of_the_weights_and_keeps_bits_of_its_own():
    for use_buffers in (False, True):
        model = mlp()
        average = AveragedModel(
            model, multi_avg_fn=get_ema_multi_avg_fn(DECAY), use_buffers=use_buffers
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        expected = None
        bits = bc.PrecisionScheduler(model, forward="CR:3-8:1", backward=8, total_steps=6)
        for x in inputs():
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            bits.step()
            average.update_parameters(model)
            now = weights(model)
            if expected is None:
                expected = now
            expected = [DECAY * e + (1 - DECAY) * n for e, n in zip(expected, now, strict=True)]
        for ours, theirs in zip(weights(average.module), expected, strict=True):
            torch.testing.assert_close(ours, theirs)
        assert str(bc.get_precision(average)) == "w4a4e8"
        assert str(bc.get_precision(model)) != "w4a4e8"


def test_it_evaluates_at_the_bits_it_is_given_after_calibration():
    for use_buffers in (False, True):
        model = mlp()
        average = AveragedModel(
            model, multi_avg_fn=get_ema_multi_avg_fn(DECAY), use_buffers=use_buffers
        )
        for x in inputs():
            model(x)
            average.update_parameters(model)
        bc.set_precision(average, "w3a3")
        bc.calibrate(average, inputs())
        plain = bc.unquantize_model(mlp())
        plain.load_state_dict(bc.float_state_dict(average))
        bc.quantize_model(plain)
        bc.set_precision(plain, "w3a3")
        bc.calibrate(plain, inputs())
        x = inputs()[0]
        assert torch.equal(average.eval()(x), plain.eval()(x))


def test_a_copy_is_averaged_through_its_state_dict():
    model = mlp()
    average = copy.deepcopy(model).requires_grad_(False)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    train(model, torch.optim.SGD(model.parameters(), lr=0.05), inputs())
    state = average.state_dict()
    for name, value in model.state_dict().items():
        state[name].lerp_(value, 0.25)
    average.load_state_dict(state)
    weight = average[0].weight
    torch.testing.assert_close(weight, start["0.weight"].lerp(model[0].weight.detach(), 0.25))
    assert (
        average[0].precision == copy.deepcopy(average)[0].precision == bc.Precision.parse("w4a4e8")
    )


def test_averaged_parameters_leave_the_ranges_of_the_copy_alone():
    model = mlp()
    model(inputs()[0])
    average = copy.deepcopy(model)
    ranges = average[0].act_range.clone()
    with torch.no_grad():
        for ours, theirs in zip(average.parameters(), model.parameters(), strict=True):
            ours.lerp_(2 * theirs, 0.5)
    assert torch.equal(average[0].act_range, ranges)


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
