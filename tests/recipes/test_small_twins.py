"""Small twins of the papers' runs."""

from dataclasses import replace

import pytest

from bitcycle.recipes import list_recipes, recipe

SMALL = {info.name for info in list_recipes() if info.scale == "small"}


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
