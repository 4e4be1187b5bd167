"""DistributedDataParallel with two processes: converted before it or after."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn

import bitcycle as bc
from tests.bitcycle.distributed.launch import run_together
from tests.bitcycle.distributed.training import EXACT, perceptron, train
from tests.bitcycle.toys import linears, randn

NOISY = {"num_steps": 12, "quantizer": {}}  # ranges of each process's own, stochastic errors


@pytest.mark.slow
def test_converted_after_ddp_is_as_converted_before_to_the_bit(tmp_path):
    before = run_together(train, 2, tmp_path, way="ddp", **NOISY)
    after = run_together(train, 2, tmp_path, way="ddp", is_converted_last=True, **NOISY)
    assert [run["weights"] for run in before] == [run["weights"] for run in after]
    assert [run["loss"] for run in before] == [run["loss"] for run in after]
    assert before[0]["weights"] == before[1]["weights"]
    assert before[0]["bits"] == before[1]["bits"] == after[1]["bits"]


@pytest.mark.slow
def test_a_run_is_the_same_again(tmp_path):
    first, second = (run_together(train, 2, tmp_path, way="ddp", **NOISY) for _ in range(2))
    assert first == second


@pytest.mark.slow
def test_inside_autocast_processes_end_with_the_same_weights(tmp_path):
    first, second = run_together(train, 2, tmp_path, way="ddp", is_autocast=True, **NOISY)
    assert first["weights"] == second["weights"]
    assert first["loss"] == second["loss"]
    assert first["weights"] != run_together(train, 2, tmp_path, way="ddp", **NOISY)[0]["weights"]


def follow_the_loss() -> list[str]:
    return train("ddp", num_steps=12, quantizer={},
                 forward="plateau:3-8:window=1:patience=0:threshold=0.5")["bits"]  # fmt: skip


@pytest.mark.slow
def test_bits_that_follow_the_loss_are_equal_on_all_ranks(tmp_path):
    first, second = run_together(follow_the_loss, 2, tmp_path)
    assert first == second
    assert len(set(first)) > 3


def noise_of_equal_data() -> list[float]:
    """The weight's gradient of this process, from data that all have."""
    model = bc.quantize_model(linears(6, 6))
    bc.set_precision(model, "w8a8e2")
    model(randn(32, 6)).square().sum().backward()
    gradient: list[float] = model[0].weight.grad.flatten().tolist()
    return gradient


def test_every_rank_rounds_with_noise_of_its_own(tmp_path):
    first, second = run_together(noise_of_equal_data, 2, tmp_path)
    assert first != second


def observe(sync_ranges: bool) -> list[list[float]]:
    """Ranges after a step on other data in each process, before DDP broadcasts them."""
    model = bc.quantize_model(perceptron(), bc.quantizers.SBM(sync_ranges=sync_ranges))
    bc.set_precision(model, "w4a4e4")
    model(randn(8, 8, seed=dist.get_rank())).sum().backward()
    return [layer.act_range[0].tolist() for layer in model.modules() if hasattr(layer, "act_range")]


def test_synchronized_ranges_are_those_of_all_processes(tmp_path):
    first, second = run_together(observe, 2, tmp_path, sync_ranges=True)
    assert first == second
    both = torch.cat([randn(8, 8, seed=rank) for rank in range(2)])
    assert first[0] == [1.0, both.min().item(), (both.max() - both.min()).item()]
    first, second = run_together(observe, 2, tmp_path, sync_ranges=False)
    assert first[0] != second[0]


def warnings_of_thin_convolutions() -> list[str]:
    """What DDP says of weights with one input channel, one tap, and one channel in each group."""
    torch.set_warn_always(True)
    layers = [nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 3, 1)]
    model = bc.quantize_model(nn.Sequential(*layers))
    bc.set_precision(model, "w4a4e4")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        parallel = nn.parallel.DistributedDataParallel(model)
        for _ in range(3):  # DDP has other buckets from the second step on
            parallel.zero_grad()
            parallel(randn(2, 1, 9, 9)).sum().backward()
    return [str(each.message) for each in caught]


def test_ddp_does_not_warn_of_the_strides_of_gradients(tmp_path):
    assert run_together(warnings_of_thin_convolutions, 2, tmp_path) == [[], []]


def differentiate_alone() -> float | None:
    """A gradient by the input in evaluation mode, as for a saliency map, in the first process."""
    model = bc.quantize_model(linears(6, 6), bc.quantizers.SBM(**EXACT), kernel="simulate")
    bc.set_precision(model, "w4a4e8")
    model(randn(4, 6)).sum().backward()
    if dist.get_rank() > 0:
        return None
    x = randn(4, 6).requires_grad_()
    model.eval()(x).square().sum().backward()
    return x.grad.abs().sum().item()


def test_one_process_may_take_gradients_in_evaluation_alone(tmp_path):
    alone, nothing = run_together(differentiate_alone, 2, tmp_path)
    assert alone > 0
    assert nothing is None


def evaluate_alone() -> float | None:
    """Only the first process converts and evaluates, a model that has observed nothing yet."""
    if dist.get_rank() > 0:
        return None
    model = bc.quantize_model(linears(6, 6), bc.quantizers.SBM(**EXACT), kernel="native")
    recurrent = bc.quantize_model(nn.LSTM(6, 3), bc.quantizers.SBM(**EXACT))
    for each in (model, recurrent):
        bc.set_precision(each.eval(), "w4a4")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", bc.BitcycleWarning)  # nothing observed
        return (model(randn(4, 6)).sum() + recurrent(randn(5, 4, 6))[0].sum()).item()


def test_one_process_may_evaluate_alone_with_synchronized_ranges(tmp_path):
    alone, nothing = run_together(evaluate_alone, 2, tmp_path)
    assert isinstance(alone, float)
    assert nothing is None
