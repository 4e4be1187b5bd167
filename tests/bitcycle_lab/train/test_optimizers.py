"""Learning-rate policies as literal sequences, and their way through a checkpoint."""

import math

import pytest
import torch
from torch.nn import Parameter

from bitcycle_lab.train.checkpoint import read_state, write_state
from bitcycle_lab.train.config import LrConfig, OptimizerConfig
from bitcycle_lab.train.optimizers import LearningRate, make_optimizer


def build(config, total_steps, lr=1.0, *, higher_is_better=True):
    optimizer = torch.optim.SGD([Parameter(torch.zeros(1))], lr=lr)
    return optimizer, LearningRate(
        config, optimizer, total_steps, higher_is_better=higher_is_better
    )


def rates(optimizer, rate, steps):
    """The rate each optimizer step is taken with."""
    found = []
    for _ in range(steps):
        found.append(rate.value)
        optimizer.step()
        rate.step()
    return found


SEQUENCES = [
    (LrConfig(policy="constant"), 1.0, [1, 1, 1, 1]),
    (LrConfig(policy="step", milestones=(0.5, 0.75)), 1.0, [1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01]),
    (LrConfig(policy="step", milestones=(1, 3), gamma=0.5), 1.0, [1, 0.5, 0.5, 0.25]),
    # the original CIFAR runs: .01 for the first steps, then .1
    (LrConfig(policy="step", milestones=(0.75,), warmup=3), 0.1,
     [0.01, 0.01, 0.01, 0.1, 0.1, 0.1, 0.01, 0.01]),
    (LrConfig(policy="constant", warmup=0.5, warmup_lr=0.2), 1.0, [0.2, 0.2, 1, 1]),
    (LrConfig(policy="cosine"), 1.0, [1, 0.85355339, 0.5, 0.14644661]),
    (LrConfig(policy="cosine", min_lr=0.5), 1.0, [1, 0.92677670, 0.75, 0.57322330]),
    (LrConfig(policy="cosine", warmup=2), 1.0, [0.01, 0.01, 0.5, 0.14644661]),
    # warm-up over 4 steps, then sqrt(4 / n)
    (LrConfig(policy="inverse_sqrt", warmup=4), 1.0,
     [0.25, 0.5, 0.75, 1, 0.89442719, 0.81649658, 0.75592895, 0.70710678]),
    # periods of 2, 4 and 8 steps
    (LrConfig(policy="warm_restarts", period=2, period_factor=2), 1.0,
     [1, 0.5, 1, 0.85355339, 0.5, 0.14644661, 1, 0.96193977]),
]  # fmt: skip


@pytest.mark.parametrize(("config", "lr", "expected"), SEQUENCES)
def test_a_policy_gives_its_sequence(config, lr, expected):
    optimizer, rate = build(config, len(expected), lr)
    assert rates(optimizer, rate, len(expected)) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize(
    ("higher_is_better", "metrics"), [(True, [10, 20, 20, 21]), (False, [30, 20, 20, 19])]
)
def test_plateau_lowers_the_rate_when_the_metric_has_not_improved(higher_is_better, metrics):
    config = LrConfig(policy="plateau", gamma=0.5, patience=0)
    optimizer, rate = build(config, 100, higher_is_better=higher_is_better)
    found = []
    for metric in metrics:
        rates(optimizer, rate, 3)  # steps alone change nothing
        rate.after_evaluation(metric)
        found.append(rate.value)
    assert found == [1, 1, 0.5, 0.5]


def test_metrics_do_not_move_the_other_policies():
    optimizer, rate = build(LrConfig(policy="step"), 8)
    rates(optimizer, rate, 1)
    rate.after_evaluation(0.0)
    assert rate.value == 1


def test_a_warm_up_that_rounds_to_no_step_is_one_step():
    config = LrConfig(policy="inverse_sqrt", warmup=0.001)
    assert rates(*build(config, 4), 4) == pytest.approx([1, math.sqrt(1 / 2), 3**-0.5, 0.5])


@pytest.mark.parametrize(("config", "lr", "expected"), SEQUENCES)
def test_a_policy_resumes_exactly_from_a_checkpoint(tmp_path, config, lr, expected):
    total = len(expected)
    whole = rates(*build(config, total, lr), total)
    for stop in range(1, total):
        optimizer, rate = build(config, total, lr)
        before = rates(optimizer, rate, stop)
        write_state(tmp_path, "s", {"o": optimizer.state_dict(), "lr": rate.state_dict()})
        stored = read_state(tmp_path, "s")
        optimizer, rate = build(config, total, lr)
        optimizer.load_state_dict(stored["o"])
        rate.load_state_dict(stored["lr"])
        assert before + rates(optimizer, rate, total - stop) == whole  # to the last bit


def test_plateau_resumes_exactly_from_a_checkpoint(tmp_path):
    config = LrConfig(policy="plateau", gamma=0.5, patience=1)
    optimizer, rate = build(config, 100)
    for metric in (10, 9):  # one more and it lowers the rate
        assert rate.value == 1
        rate.after_evaluation(metric)
    write_state(tmp_path, "s", {"o": optimizer.state_dict(), "lr": rate.state_dict()})
    stored = read_state(tmp_path, "s")
    optimizer, rate = build(config, 100)
    optimizer.load_state_dict(stored["o"])
    rate.load_state_dict(stored["lr"])
    rate.after_evaluation(9.5)
    assert rate.value == 0.5


@pytest.mark.parametrize(
    ("name", "kind"),
    [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)],
)
def test_an_optimizer_is_torchs_own_with_its_settings(name, kind):
    config = OptimizerConfig(name=name, lr=0.3, momentum=0.8, weight_decay=0.02, betas=(0.7, 0.8))
    optimizer = make_optimizer(config, [Parameter(torch.zeros(1))])
    assert type(optimizer) is kind
    group = optimizer.param_groups[0]
    assert (group["lr"], group["weight_decay"]) == (0.3, 0.02)
    if name == "sgd":
        assert (group["momentum"], group["nesterov"]) == (0.8, False)
    else:
        assert group["betas"] == (0.7, 0.8)
