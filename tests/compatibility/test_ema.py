"""AveragedModel with an exponential moving average."""

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import bitcycle as bc

from .training import inputs, mlp, weights

DECAY = 0.5


@pytest.mark.parametrize("use_buffers", [False, True])
def test_the_average_is_that_of_the_weights_and_keeps_bits_of_its_own(use_buffers):
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


@pytest.mark.parametrize("use_buffers", [False, True])
def test_it_evaluates_at_the_bits_it_is_given_after_calibration(use_buffers):
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
