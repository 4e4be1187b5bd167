"""Saving a scheduler in the middle of a run, and going on elsewhere."""

import copy
import json

import pytest
import torch
from torch import nn

import bitcycle as bc
from tests.toys import linears, net, randn


def new_run(total_steps=8, forward="CR:3-8:1", model=None):
    model = bc.quantize_model(linears(8, 8, 8) if model is None else model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    bits = bc.PrecisionScheduler(model, forward=forward, backward=4, total_steps=total_steps)
    return model, optimizer, bits


def train(model, optimizer, bits, steps):
    for step in steps:
        for micro_batch in range(2):
            x = randn(16, 8, seed=10 * step + micro_batch)
            model(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        bits.step()


def test_a_resumed_run_has_the_same_bits_noise_and_weights():
    whole, first, second = new_run(), new_run(), new_run(model=linears(8, 8, 8, seed=3))
    train(*whole, range(8))
    train(*first, range(3))
    for old, new in zip(first, second, strict=True):
        new.load_state_dict(copy.deepcopy(old.state_dict()))
    assert str(second[2].precision) == str(first[2].precision) != "w8a8e4g4"
    train(*second, range(3, 8))
    assert torch.equal(whole[0][0].weight, second[0][0].weight)
    assert torch.equal(whole[0][1].act_range, second[0][1].act_range)
    assert whole[2].history() == second[2].history()


@pytest.mark.filterwarnings("ignore:.*never observed")
def test_evaluation_between_steps_does_not_change_the_training():
    plain, evaluated = new_run(), new_run()
    train(*plain, range(4))
    for step in range(4):
        model = evaluated[0].eval()
        with torch.no_grad():
            model(randn(16, 8))
        model.train()
        train(*evaluated, [step])
    assert torch.equal(plain[0][0].weight, evaluated[0][0].weight)


def test_steps_and_micro_batches_have_noise_of_their_own():
    model, _, bits = new_run(forward=8)
    x, gradients = randn(16, 8), []
    for _ in range(2):
        for _ in range(2):
            model.zero_grad()
            model(x).square().sum().backward()
            gradients.append(model[0].weight.grad.clone())
        bits.step()
    assert all(not torch.equal(gradients[i], gradients[j]) for i in range(4) for j in range(i))


def test_the_state_is_one_integer_and_what_it_belongs_to():
    _, _, bits = new_run(total_steps=8)
    bits.step()
    state = json.loads(json.dumps(bits.state_dict()))
    assert state["step_count"] == 1
    assert state["total_steps"] == 8
    assert state["schedules"] == "weight=CR:3-8:1 act=CR:3-8:1 error=4 grad=4"


def test_loading_applies_the_bits_at_once():
    model, _, bits = new_run()
    bits.load_state_dict({"step_count": 8})
    assert str(model[0].precision) == "w8a8e4g4"
    assert bits.finished
    bits.load_state_dict({"step_count": 0})
    assert str(model[0].precision) == "w3a3e4g4"


def test_a_state_of_another_run_is_a_warning():
    saved = new_run()[2].state_dict()
    with pytest.warns(bc.BitcycleWarning, match="total_steps 8, this one has 16"):
        new_run(total_steps=16)[2].load_state_dict(saved)
    with pytest.warns(bc.BitcycleWarning, match="weight=CR:3-8:1 .*, this one has .*weight=4"):
        new_run(forward=4)[2].load_state_dict(saved)


@pytest.mark.parametrize("step", [-1, 9, None, 1.0, True])
def test_a_step_outside_the_run_is_an_error(step):
    bits = new_run()[2]
    with pytest.raises(ValueError, match=r"step_count must be .* from 0 to total_steps \(8\)"):
        bits.load_state_dict({"step_count": step})
    assert bits.step_count == 0


def test_a_scheduler_of_two_models_in_one_module_drives_both():
    both = nn.ModuleDict({"a": net(), "b": linears(4, 4)})
    for model in both.values():
        bc.quantize_model(model)
    bits = bc.PrecisionScheduler(both, forward="stages:3@0.5,8", total_steps=2)
    bits.step()
    assert str(both["a"].conv.precision) == str(both["b"][0].precision) == "w8a8"
