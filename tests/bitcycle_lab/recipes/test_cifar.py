"""Settings of CPT's cells on CIFAR, written out, against the paper; and of the small runs."""

from dataclasses import replace

import pytest

from bitcycle.schedules import parse_schedule
from bitcycle_lab.recipes import list_recipes, recipe
from bitcycle_lab.recipes.cifar import figure5
from bitcycle_lab.train.config import steps_of

INFOS = {info.name: info for info in list_recipes()}


def result_of(name):
    return [(p.metric, p.value, p.unit) for p in INFOS[name].results]


def test_cpt():
    config = recipe("cifar100-resnet74-cpt-3-8-8")
    assert (config.task, config.model.name, config.data.name) == ("images", "resnet74", "cifar100")
    assert (config.precision.forward, config.precision.backward) == ("CR:3-8:32", 8)
    assert (config.precision.quantizer, config.precision.skip) == ("sbm", ("fc",))
    assert (config.steps, config.data.batch_size, config.epochs) == (64_000, 128, None)
    optimizer = config.optimizer
    assert (optimizer.name, optimizer.lr, optimizer.momentum) == ("sgd", 0.1, 0.9)
    assert (optimizer.nesterov, optimizer.weight_decay) == (False, 1e-4)
    assert (config.lr.policy, config.lr.gamma, config.lr.warmup) == ("step", 0.1, 0)
    assert [steps_of(m, 64_000) for m in config.lr.milestones] == [32_000, 48_000]
    assert config.eval.precision == "high"
    assert config.swa.start is None
    assert config.clip_norm is None
    assert result_of(config.name)[0] == ("accuracy", 72.35, "%")


@pytest.mark.parametrize(
    ("name", "forward", "backward", "published"),
    [
        ("cifar10-resnet164-cpt-3-6-6", "CR:3-6:32", 6, 93.02),
        ("cifar10-mobilenetv2-dorefa-8-8", 8, 8, 91.03),
        ("cifar100-mobilenetv2-anneal-4-6-6", "anneal:4-6:32", 6, 73.12),
        ("cifar100-resnet38-cpt-3-8-8-start60", "delay@0.375(CR:3-8:32)", 8, 69.6),
        ("cifar100-resnet74-cpt-3-6-6-start160", "delay@1.0(CR:3-6:32)", 6, 64.2),
        ("cifar100-resnet74-static-6-8", 6, 8, 70.51),
        ("cifar100-resnet74-gradcycle-6-6-10", 6, "CR:6-10:32", 70.32),
    ],
)
def test_bits_and_published_results(name, forward, backward, published):
    precision = recipe(name).precision
    assert (precision.forward, precision.backward) == (forward, backward)
    assert result_of(name)[0] == ("accuracy", published, "%")


def test_the_first_stage_of_table_1_has_its_own_bits_and_rate():
    config = recipe("cifar100-resnet38-stage1-4-lr0.06")
    assert config.precision.forward == "stages:4@0.5,fp32"
    assert config.precision.backward == "stages:8@0.5,fp32"
    assert (config.lr.warmup, config.lr.warmup_lr) == (0.5, 0.06)
    assert (config.optimizer.lr, config.lr.milestones) == (0.01, (0.75,))
    assert result_of(config.name) == [("accuracy", 68.63, "%")]
    plain = recipe("cifar100-resnet74-stage1-fp32-lr0.01")
    assert plain.precision.is_float
    assert result_of(plain.name) == [("accuracy", 65.62, "%")]


def test_a_run_that_never_starts_cycling_is_evaluated_at_what_it_trained_with():
    assert recipe("cifar100-resnet38-cpt-3-8-8-start160").eval.precision == "scheduled"
    assert recipe("cifar100-resnet38-cpt-3-8-8-start120").eval.precision == "high"
    assert set(parse_schedule("delay@1.0(CR:3-8:32)").values(100)) == {3}


def test_the_costs_that_can_be_read_off_figure_5():
    costs = {entry.config.name: entry.published[0].value for entry in figure5()}
    assert len(costs) == 12  # three networks that no table has, at four bit-widths
    assert {name.split("-")[1] for name in costs} == {"resnet38", "resnet110", "resnet152"}
    assert costs["cifar100-resnet110-static-8-8"] == 402e6
    assert costs["cifar100-resnet110-cpt-3-6-6"] == 158e6


def test_small_runs_differ_in_their_bits_only():
    static = recipe("cifar10-resnet8-static-8-8-small")
    cpt = recipe("cifar10-resnet8-cpt-3-8-8-small")
    assert replace(cpt, name=static.name, precision=static.precision) == static
    assert (cpt.precision.forward, cpt.precision.backward) == ("CR:3-8:8", 8)
    assert (static.steps, static.data.subset, static.threads) == (512, 10_000, 1)
