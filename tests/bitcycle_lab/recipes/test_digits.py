"""Digits: CPT, and the methods that it is compared with."""

import dataclasses

import pytest

from bitcycle.quantizers import QUANTIZERS
from bitcycle_lab.recipes import recipe
from bitcycle_lab.train import run

LEARNING = (  # one of every kind of method
    "clr-8-8", "cpt-3-8-8-swa", "ladder-16-8-4", "late-switch-4-8", "noise-switch-8-4-8",
    "per-layer-3-8-8", "pfq-3-8-8", "wageubn-8-8",
)  # fmt: skip


def test_every_quantizer_of_integers_has_a_static_baseline():
    for quantizer in set(QUANTIZERS.names()) - {"sbm", "fp8", "mx", "nvfp4"}:
        precision = recipe(f"digits-{quantizer.replace('_', '-')}-8-8").precision
        assert precision.quantizer == quantizer
        assert (precision.forward, precision.backward) == (8, 8)
    assert recipe("digits-wageubn-8-8").precision.quantizer_options == {"total_steps": 240}


def test_a_baseline_differs_from_the_static_run_in_its_method_only():
    static = recipe("digits-static-8-8")
    swa = recipe("digits-static-8-8-swa")
    assert dataclasses.replace(swa, name=static.name, swa=static.swa) == static
    assert (swa.swa.start, swa.swa.every) == (0.75, 8)
    clr = recipe("digits-clr-8-8")
    assert dataclasses.replace(
        clr, name=static.name, lr=static.lr, optimizer=static.optimizer
    ) == static  # fmt: skip
    noise = recipe("digits-noise-switch-8-4-8")
    assert dataclasses.replace(noise, name=static.name, precision=static.precision) == static


def test_the_cyclic_learning_rate_is_the_published_one():
    config = recipe("digits-clr-8-8")
    assert (config.optimizer.lr, config.optimizer.weight_decay) == (0.05, 5e-4)
    assert (config.lr.policy, config.lr.min_lr) == ("warm_restarts", 0.0)
    assert (config.lr.period * 160, config.lr.period_factor) == (10, 2)  # epochs


@pytest.mark.parametrize(
    ("name", "forward", "backward"),
    [
        ("cpt-3-8-8", "CR:3-8:8", 8),
        ("static-4-8", 4, 8),
        ("pfq-3-8-8", "pfq:3,4,6,8:window=8:eps=0.15:alpha=0.4",
         "pfq:6,6,8,8:window=8:eps=0.15:alpha=0.4"),
        ("plateau-3-8-8", "plateau:3-8:window=8:patience=1", 8),
        ("noise-switch-8-4-8", 8, "noise:4,8:every=10"),
        ("late-switch-4-8", "stages:4@0.9,fp32", "stages:8@0.9,fp32"),
        ("late-switch-forward-4-8", "stages:4@0.9,fp32", 8),
        ("ladder-16-8-4", "stages:16@0.5,8@0.75,4", 8),
        ("per-layer-3-8-8", {"*": "CR:3-8:8", "conv1": 8}, 8),
        ("progressive-3-8-8", "ramp:3-8@0.5", 8),
        ("cpt-3-8-8-start60", "delay@0.375(CR:3-8:8)", 8),
        ("gradcycle-6-6-10", 6, "CR:6-10:8"),
    ],
)  # fmt: skip
def test_bits(name, forward, backward):
    precision = recipe(f"digits-{name}").precision
    assert (precision.forward, precision.backward) == (forward, backward)


def test_bits_that_end_below_the_top_are_evaluated_where_they_end():
    for name, precision in (("pfq-3-8-8", "scheduled"), ("ladder-16-8-4", "scheduled"),
                            ("cpt-3-8-8", "high")):  # fmt: skip
        assert recipe(f"digits-{name}").eval.precision == precision


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::bitcycle.warnings.BitcycleWarning")
@pytest.mark.parametrize("name", LEARNING)
def test_a_small_baseline_learns_the_digits(tmp_path, name):
    result = run(dataclasses.replace(recipe(f"digits-{name}"), output=str(tmp_path)))
    assert result.value > 90
    assert result.steps == 240
