"""The times of the doctor."""

import pytest
import torch

from bitcycle.kernels.base import KERNELS
from bitcycle_lab.doctor.check import Device
from bitcycle_lab.doctor.times import (
    LayerStep,
    convolution,
    heads,
    linear,
    measure_times,
    timed_layers,
)

from .kernels import Elsewhere, Raising

CPU = Device(torch.device("cpu"))


def test_every_kernel_that_runs_is_timed_with_every_layer():
    layers = linear(8, 4), convolution(1, 4, 4), heads(1, 4, 2)
    found, _ = measure_times(CPU, layers, repeats=3)
    running = [n for n, kernel in KERNELS.items() if kernel.reason_against_device("cpu") is None]
    expected = ["float32", "bfloat16 autocast", *running, "auto"]
    for layer in layers:
        own = [each for each in found if each.layer == layer.text]
        assert [each.kernel for each in own] == expected
        assert all(each.seconds > 0 and each.num_repeats == 3 for each in own)
    assert {each.bits for each in found if each.kernel == "bf16"} == {"bf16"}
    assert {each.bits for each in found if each.kernel == "auto"} == {"8"}


def test_a_kernel_that_raises_is_not_timed_and_the_others_are(monkeypatch):
    monkeypatch.setitem(KERNELS._entries, "raising", Raising())
    monkeypatch.setitem(KERNELS._entries, "elsewhere", Elsewhere())
    measured, failed = measure_times(CPU, [linear(8, 4)], repeats=1)
    found = {each.kernel: each for each in measured}
    assert [(c.by, c.outcome, c.reason) for c in failed] == [
        ("raising", "failed", "RuntimeError: no such instruction")
    ]
    assert found["raising"].seconds is None
    assert found["raising"].reason == "RuntimeError: no such instruction"
    assert found["simulate"].seconds > 0
    assert "elsewhere" not in found


def test_three_layers_are_timed_on_either_device():
    assert [len(timed_layers(torch.device(name))) for name in ("cpu", "cuda")] == [3, 3]


def step_raising(error, *, after=0):
    """The step of the kernel `simulate` raises after so many calls."""
    right, calls = LayerStep.__call__, []

    def step(self):
        if self.kernel == "simulate":
            calls.append(1)
            if len(calls) > after:
                raise error
        right(self)

    return step


@pytest.mark.parametrize("after", [0, 3])
def test_a_kernel_that_raises_at_any_step_fails_and_the_others_are_timed(monkeypatch, after):
    error = RuntimeError("illegal memory access")
    monkeypatch.setattr(LayerStep, "__call__", step_raising(error, after=after))
    measured, failed = measure_times(CPU, [linear(8, 4)], repeats=5)
    assert [check.by for check in failed] == ["simulate"]
    assert all((each.seconds is None) == (each.kernel == "simulate") for each in measured)


def test_too_little_memory_is_no_failure(monkeypatch):
    monkeypatch.setattr(LayerStep, "__call__", step_raising(torch.OutOfMemoryError("full")))
    measured, failed = measure_times(CPU, [linear(8, 4)], repeats=1)
    assert failed == []
    assert [each.kernel for each in measured if each.seconds is None] == ["simulate"]


@pytest.mark.parametrize("after", [0, 3])
def test_nothing_is_timed_on_a_device_that_no_longer_answers(monkeypatch, after):
    monkeypatch.setattr(Device, "_answers", lambda self: False)
    monkeypatch.setattr(LayerStep, "__call__", step_raising(RuntimeError("lost"), after=after))
    device = Device(torch.device("cpu"))
    measured, failed = measure_times(device, [linear(8, 4), heads(1, 4, 2)], repeats=5)
    assert [each.kernel for each in measured] == ["simulate"]
    assert len(failed) == 1
    assert device.lost_by.startswith("simulate")
