"""Comparing an exported model to the evaluated one."""

import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.export.run import Check, compare
from bitcycle.tasks import TASKS, DataConfig, ModelConfig
from tests.export.models import ready


@pytest.fixture(scope="module")
def task():
    data = DataConfig(name="digits", subset=60, batch_size=16, validation=20)
    return TASKS["images"](ModelConfig(name="digits_mlp", options={"width": 8}), data)


def built(task, bits="w4a4"):
    torch.manual_seed(0)
    model = task.build_model()
    (x,) = task.inputs(next(iter(task.eval_batches("train"))))
    return ready(model, x, bits)


def test_differences_are_those_of_the_outputs(task):
    class Shifted(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, x):
            return self.model(x) + 0.25

    model = task.build_model()
    check = compare(task, model, bc.Precision(), Shifted(model), "validation")
    assert check.mean_difference == pytest.approx(0.25, rel=1e-5)
    assert check.largest_difference == pytest.approx(0.25, rel=1e-5)
    assert check.run == check.exported
    assert not check.is_within


@pytest.mark.parametrize(("exported", "mean", "expected"), [
    (90.0, 0.0, True), (89.2, 0.01, True), (89.0, 0.0, False), (90.0, 0.02, False),
])  # fmt: skip
def test_both_the_metric_and_the_outputs_must_be_near(exported, mean, expected):
    check = Check(
        split="test", metric="accuracy", run=90.0, exported=exported, largest_output=1.0,
        largest_difference=0.1, mean_difference=mean, tolerance=0.01,
    )  # fmt: skip
    assert check.is_within is expected
