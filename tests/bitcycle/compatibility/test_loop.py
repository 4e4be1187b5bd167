"""What loops do: accumulation, clipping, autocast, scaling, checkpointing, layouts, optimizers."""

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import bitcycle as bc
from bitcycle.nonfinite import NonFiniteError
from bitcycle.quantizers import SBM

from .training import assert_close, assert_equal, convnet, images, inputs, mlp, train, twins


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


def test_the_norm_is_what_it_was_clipped_to():
    model = mlp()
    model(100 * inputs()[0]).square().mean().backward()
    norm = clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    assert norm > 1
    clipped = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    torch.testing.assert_close(clipped, torch.tensor(1.0), rtol=1e-4, atol=0.0)


def test_values_are_clipped_and_foreach_is_the_same():
    grads = []
    for foreach in (True, False):
        model = mlp()
        model(100 * inputs()[0]).square().mean().backward()
        clip_grad_value_(model.parameters(), 0.1, foreach=foreach)
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert grads[0].abs().max() <= 0.1
    assert torch.equal(*grads)


def test_float_layers_and_full_precision_follow_autocast():
    model = bc.quantize_model(nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)), skip=["1"])
    bc.set_precision(model, "w4a4e8")
    x = inputs()[0]
    with torch.autocast("cpu", torch.bfloat16):
        assert model(x).dtype == torch.bfloat16
        with bc.at_precision(model, "fp32"):
            assert model[0](x).dtype == torch.bfloat16


def test_training_under_autocast_learns_and_keeps_float32_weights():
    model = convnet()
    batches = images(1) * 30
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)

    class Autocast(nn.Module):
        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return model(x)

    before = model(batches[0]).square().mean().item()
    train(model, optimizer, batches, run=Autocast())
    assert model(batches[0]).square().mean().item() < 0.5 * before
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


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


class Checkpointed(nn.Module):
    def __init__(self, model, reentrant):
        super().__init__()
        self.model, self.reentrant = [model], reentrant

    def forward(self, x):
        return checkpoint(self.model[0], x.requires_grad_(), use_reentrant=self.reentrant)


def test_a_run_is_the_run_without_it_to_the_bit():
    for reentrant in (True, False):
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


LAYOUT = torch.channels_last


def test_training_is_that_of_the_default_layout_but_for_the_noise():
    for kernel in ("simulate", "native"):
        rules = SBM(error_rounding="nearest")  # noise is numbered in memory order
        model, twin = (
            convnet(quantizer=rules, kernel=kernel),
            convnet(quantizer=rules, kernel=kernel),
        )
        model.to(memory_format=LAYOUT)
        for each, layout in ((model, LAYOUT), (twin, torch.contiguous_format)):
            optimizer = torch.optim.SGD(each.parameters(), lr=0.01)
            train(each, optimizer, [x.to(memory_format=layout) for x in images(2)], forward="8")
        assert_close(model, twin, rtol=1e-3)


OPTIMIZERS = {
    "SGD": lambda p, **way: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, **way),
    "Adam": lambda p, **way: torch.optim.Adam(p, lr=0.01, weight_decay=0.01, **way),
    "AdamW": lambda p, **way: torch.optim.AdamW(p, lr=0.01, amsgrad=True, **way),
}
WAYS = {"fused": {"fused": True}, "foreach": {"foreach": True}}


def trained(name, **way):
    model = mlp()  # not the convnet: a bias before a BatchNorm has rounding errors for a gradient
    train(model, OPTIMIZERS[name](model.parameters(), **way), inputs())
    return model


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_way_is_the_for_loop_up_to_rounding(name, way):
    assert_close(trained(name, **WAYS[way]), trained(name, foreach=False), rtol=1e-3)


def test_an_optimizer_built_before_the_conversion_trains_the_converted_model():
    model = bc.unquantize_model(mlp())
    optimizer = OPTIMIZERS["AdamW"](model.parameters())
    bc.quantize_model(model)
    train(model, optimizer, inputs())
    assert_close(model, trained("AdamW"))
