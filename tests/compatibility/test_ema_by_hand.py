"""copy.deepcopy and state_dict, as many loops average by hand."""

import copy

import torch

import bitcycle as bc

from .training import inputs, mlp, train


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


def test_a_copy_and_its_original_share_neither_bits_nor_ranges():
    model = mlp()
    other = copy.deepcopy(model)
    bc.set_precision(other, "w8a8")
    other(inputs()[0])
    assert str(bc.get_precision(model)) == "w4a4e8"
    assert not model[0].is_observed
    assert other[0].is_observed


def test_averaged_parameters_leave_the_ranges_of_the_copy_alone():
    model = mlp()
    model(inputs()[0])
    average = copy.deepcopy(model)
    ranges = average[0].act_range.clone()
    with torch.no_grad():
        for ours, theirs in zip(average.parameters(), model.parameters(), strict=True):
            ours.lerp_(2 * theirs, 0.5)
    assert torch.equal(average[0].act_range, ranges)
