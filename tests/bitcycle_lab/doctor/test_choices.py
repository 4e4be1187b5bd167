"""The choices of `auto` that the doctor shows."""

import pytest
import torch

from bitcycle.kernels.choice import kernel_table
from bitcycle_lab.doctor import choices, examine
from bitcycle_lab.doctor.check import Device

from .small import make_small


def test_sizes_of_a_gpu_reach_the_rows_of_its_table():
    rows = [row for row in kernel_table() if row.kernel == "gpu" and row.processor == "sm_80"]
    for row in rows:
        sizes = [s for s in choices._sizes(torch.device("cuda")) if s.layer == row.layer]
        assert not sizes or max(size.macs for size in sizes) >= row.macs_from
    assert {row.layer for row in rows} >= {"linear", "matmul", "convolution"}


@pytest.mark.parametrize("is_lost", [False, True])
def test_an_error_of_the_device_is_a_failed_check_and_the_report_is_made(monkeypatch, is_lost):
    make_small(monkeypatch)

    def fail(*args):
        raise RuntimeError("illegal memory access")

    monkeypatch.setattr(choices, "_decide", fail)
    monkeypatch.setattr(Device, "_answers", lambda self: not is_lost)
    report = examine(torch.device("cpu"), layers=())
    assert report.failed == ("auto",)
    assert {choice.kernel for choice in report.choices} == {"-"}
    assert "FAILED  auto linear 8: RuntimeError: illegal memory access" in str(report)
    assert ({c.outcome for c in report.checks if c.by == "simulate"} == {"not run"}) == is_lost
    report.to_dict()
