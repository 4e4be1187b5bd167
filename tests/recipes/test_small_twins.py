"""Small twins of the papers' runs."""

from dataclasses import replace

import pytest

from bitcycle.recipes import list_recipes, recipe
from bitcycle.schedules.cycle import Cycle

SMALL = {info.name for info in list_recipes() if info.scale == "small"}


@pytest.mark.parametrize(
    ("name", "forward", "backward"),
    [
        ("digits-static-4-8", 4, 8),
        ("digits-static-4-6", 4, 6),
        ("digits-cpt-4-6-6", "CR:4-6:8", 6),
        ("digits-cpt-3-16-8", "CR:3-16:8", 8),
        ("digits-cpt-8-32", "CR:8-32:8", "fp32"),
        ("digits-cpt-3-8-8-n32", "CR:3-8:32", 8),
        ("digits-anneal-3-6-6", "anneal:3-6:8", 6),
        ("digits-cpt-3-6-6-start160", "delay@1.0(CR:3-6:8)", 6),
        ("digits-gradcycle-6-6-16", 6, "CR:6-16:8"),
        ("digits-stage1-4-lr0.06", "stages:4@0.5,fp32", "stages:8@0.5,fp32"),
        ("digits-dorefa-cpt-3-8-8", "CR:3-8:8", 8),
        ("cifar10-resnet8-cpt-3-8-8-n32-small", "CR:3-8:32", 8),
        ("cifar10-resnet8-rr-3-8-8-small", "RR:3-8:8", 8),
        ("cifar10-resnet8-cpt-3-8-8-start60-small", "delay@0.375(CR:3-8:8)", 8),
        ("cifar10-resnet8-progressive-3-8-8-small", "ramp:3-8@0.5", 8),
        ("cifar10-resnet8-dorefa-6-6-small", 6, 6),
        ("wikitext2-lstm-et-h-5-8-8-small", "ET-H:5-8:8", 8),
    ],
)
def test_bits_of_a_twin(name, forward, backward):
    precision = recipe(name).precision
    assert (precision.forward, precision.backward) == (forward, backward)
    assert name in SMALL


@pytest.mark.parametrize("cell", ["stage1-fp32-lr0.01", "cpt-3-8-8-start160", "wageubn-6-6"])
def test_a_twin_keeps_the_rates_and_the_evaluation_of_the_large_run(cell):
    large, small = recipe(f"cifar100-resnet74-{cell}"), recipe(f"digits-{cell}")
    assert (small.optimizer, small.lr) == (large.optimizer, large.lr)
    assert small.eval.precision == large.eval.precision
    assert small.precision.skip == large.precision.skip
    assert (small.steps, large.steps) == (240, 64_000)


def test_rules_that_follow_the_length_of_the_run_follow_the_short_one():
    for name in ("digits-wageubn-6-6", "digits-wageubn-cpt-3-8-8"):
        assert recipe(name).precision.quantizer_options == {"total_steps": 240}
    small = recipe("cifar10-resnet8-wageubn-8-8-small")
    assert small.precision.quantizer_options == {"total_steps": 512}


def test_cifar_10_runs_differ_in_their_bits_only():
    static = recipe("cifar10-resnet8-static-8-8-small")
    for name in ("rr-3-8-8", "er-3-8-8", "progressive-3-8-8", "dorefa-8-8"):
        other = recipe(f"cifar10-resnet8-{name}-small")
        assert replace(other, name=static.name, precision=static.precision) == static
    assert (static.steps, static.data.subset, static.threads) == (512, 10_000, 1)


def test_the_small_lstm_has_all_ten_schedules():
    for name in Cycle.named():
        assert recipe(f"wikitext2-lstm-{name.lower()}-5-8-8-small").precision.backward == 8
