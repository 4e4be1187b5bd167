"""The times of the doctor."""

import torch

from bitcycle.kernels.base import KERNELS
from bitcycle_lab.doctor.check import Device
from bitcycle_lab.doctor.times import (
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
    found = measure_times(CPU, layers, repeats=3)
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
    found = {each.kernel: each for each in measure_times(CPU, [linear(8, 4)], repeats=1)}
    assert found["raising"].seconds is None
    assert found["raising"].reason == "RuntimeError: no such instruction"
    assert found["simulate"].seconds > 0
    assert "elsewhere" not in found


def test_three_layers_are_timed_on_either_device():
    assert [len(timed_layers(torch.device(name))) for name in ("cpu", "cuda")] == [3, 3]
