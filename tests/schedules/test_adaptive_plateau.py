"""Plateau: hand-made metrics and the steps at which one bit must be added."""

import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from bitcycle.schedules import Plateau
from tests.schedules.test_adaptive import follow


def turns(rule, values, total_steps=1000):
    return follow(rule, values, total_steps)[-1]["turns"]


def test_one_bit_more_after_more_than_patience_values_without_improvement():
    rule = Plateau(3, 8, window=1, patience=2)
    assert turns(rule, [1.0, 1.0, 1.0]) == []
    assert turns(rule, [1.0, 1.0, 1.0, 1.0]) == [4]
    assert turns(rule, [1.0, 1.0, 1.0, 0.5, 0.5, 0.5]) == []  # an improvement starts the count anew
    assert turns(rule, [1.0] * 12) == [4, 7, 10]


def test_without_patience_every_value_that_is_no_improvement_adds_a_bit():
    assert turns(Plateau(3, 5, window=1, patience=0), [3.0, 2.0, 2.0, 1.0, 1.5, 1.5]) == [3, 5]


def test_an_improvement_is_relative_to_the_best():
    rule = Plateau(3, 8, window=1, patience=0, threshold=0.1)
    assert turns(rule, [10.0, 9.01]) == [2]  # not below 9
    assert turns(rule, [10.0, 8.99]) == []
    assert turns(rule, [-10.0, -10.9]) == [2]  # a negative metric falls further to improve
    assert turns(rule, [-10.0, -11.1]) == []


def test_the_best_is_kept_over_a_rise():
    assert turns(Plateau(3, 8, window=1, patience=0), [1.0, 5.0, 2.0, 1.5]) == [2, 3, 4]


def test_the_loss_is_averaged_over_a_window():
    values = [2.0, 0.0, 0.5, 1.5, 1.9, 0.3]  # means 1, 1, 1.1
    assert turns(Plateau(3, 8, window=2, patience=0), values) == [4, 6]
    assert turns(Plateau(3, 8, window=0.02, patience=0), values, total_steps=100) == [4, 6]


def test_a_validation_metric_counts_as_it_comes_whatever_the_window():
    rule = Plateau(3, 8, window=500, patience=0, on="validation")
    assert turns(rule, [1.0, 1.0]) == [2]
    assert rule.reads == ("validation",)
    assert not rule.is_due(rule.start(), 0)
    assert Plateau(3, 8).is_due(rule.start(), 0)


@pytest.mark.parametrize("patience", [0, 1, 3])
def test_it_acts_when_torch_lowers_a_learning_rate(patience):
    generator = torch.Generator().manual_seed(patience)
    values = (torch.rand(60, generator=generator) + torch.linspace(2, 1, 60)).tolist()
    parameter = torch.nn.Parameter(torch.zeros(()))
    lr = ReduceLROnPlateau(
        torch.optim.SGD([parameter], lr=1.0), factor=0.5, patience=patience, threshold=0.05, eps=0
    )
    lowered = []
    for step, value in enumerate(values):
        before = lr.get_last_lr()[0]
        lr.step(value)
        if lr.get_last_lr()[0] < before:
            lowered.append(step + 1)
    rule = Plateau(1, 32, window=1, patience=patience, threshold=0.05)
    assert turns(rule, values) == lowered[:31]
    assert lowered


def test_it_starts_at_low_and_stops_at_high():
    rule = Plateau(3, 5, window=1, patience=0)
    assert rule.levels == (3, 4, 5)
    assert turns(rule, [1.0] * 10) == [2, 3]
    assert Plateau(4, 4, window=1).notes(3) == []
