"""The methods that CPT is compared with."""

import dataclasses

import pytest

from bitcycle.quantizers import QUANTIZERS
from bitcycle.recipes import recipe
from bitcycle.schedules import parse_schedule
from bitcycle.train import run

LEARNING = (  # one of every kind of method
    "clr-8-8", "cpt-3-8-8-swa", "ladder-16-8-4", "late-switch-4-8", "noise-switch-8-4-8",
    "per-layer-3-8-8", "pfq-3-8-8", "wageubn-8-8",
)  # fmt: skip


def test_every_quantizer_has_a_static_baseline_at_both_sizes():
    for quantizer in set(QUANTIZERS.names()) - {"sbm"}:
        for network in ("digits", "cifar100-resnet74"):
            precision = recipe(f"{network}-{quantizer.replace('_', '-')}-8-8").precision
            assert precision.quantizer == quantizer
            assert (precision.forward, precision.backward) == (8, 8)


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
    config = recipe("cifar100-resnet74-clr-8-8")
    assert (config.optimizer.lr, config.optimizer.weight_decay) == (0.05, 5e-4)
    assert (config.lr.policy, config.lr.min_lr) == ("warm_restarts", 0.0)
    assert (config.lr.period * 160, config.lr.period_factor) == (10, 2)  # epochs


@pytest.mark.parametrize(
    ("name", "forward", "backward"),
    [
        ("pfq-3-8-8", "pfq:3,4,6,8:window=400", "pfq:6,6,8,8:window=400"),
        ("plateau-3-8-8", "plateau:3-8:window=400:patience=1", 8),
        ("noise-switch-8-4-8", 8, "noise:4,8:every=100"),
        ("late-switch-4-8", "stages:4@0.9,fp32", "stages:8@0.9,fp32"),
        ("late-switch-forward-4-8", "stages:4@0.9,fp32", 8),
        ("ladder-16-8-4", "stages:16@0.5,8@0.75,4", 8),
        ("per-layer-3-8-8", {"*": "CR:3-8:32", "conv1": 8}, 8),
    ],
)
def test_bits_of_the_full_size(name, forward, backward):
    precision = recipe(f"cifar100-resnet74-{name}").precision
    assert (precision.forward, precision.backward) == (forward, backward)


def test_fractrain_s_stages_have_its_settings():
    precision = recipe("cifar100-resnet74-pfq-3-8-8").precision
    forward, backward = parse_schedule(precision.forward), parse_schedule(precision.backward)
    assert (forward.eps, forward.alpha, forward.window) == (0.05, 0.3, 400)
    assert (backward.eps, backward.alpha, backward.window) == (0.05, 0.3, 400)
    assert recipe("cifar100-resnet74-pfq-3-8-8").eval.precision == "scheduled"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::bitcycle.warnings.BitcycleWarning")
@pytest.mark.parametrize("name", LEARNING)
def test_a_small_baseline_learns_the_digits(tmp_path, name):
    result = run(dataclasses.replace(recipe(f"digits-{name}"), output=str(tmp_path)))
    assert result.value > 90
    assert result.steps == 240
