"""The doctor on the device."""

from __future__ import annotations

import json

import pytest
import torch

from bitcycle.gpu import driver
from bitcycle.kernels.base import KERNELS
from bitcycle_lab.cli.main import main
from bitcycle_lab.doctor import examine, find_device, rounding
from bitcycle_lab.doctor.check import Device
from bitcycle_lab.doctor.times import heads, linear
from tests.bitcycle_lab.doctor.kernels import SlightlyWrong
from tests.bitcycle_lab.doctor.small import make_small


@pytest.fixture(autouse=True)
def _small(monkeypatch, tmp_path):
    make_small(monkeypatch)
    monkeypatch.chdir(tmp_path)


def test_the_gpu_is_examined_unless_another_device_is_asked_for():
    assert find_device(None) == torch.device("cuda", 0)
    assert find_device("cpu") == torch.device("cpu")
    with pytest.raises(ValueError, match=f"cuda:{torch.cuda.device_count()}"):
        find_device(f"cuda:{torch.cuda.device_count()}")


def test_every_kernel_is_right_on_the_device_or_says_why_it_does_not_run():
    report = examine(find_device(None), layers=[linear(8, 4), heads(1, 4, 2)])
    assert report.failures == ()
    outcomes = {name: set() for name in KERNELS}
    for check in report.checks:
        outcomes.setdefault(check.by, set()).add(check.outcome)
    for name, kernel in KERNELS.items():
        runs = kernel.reason_against_device("cuda") is None
        assert outcomes[name] == ({"passed"} if runs else {"not run"})
    assert report.machine["gpus"][0]["name"] == torch.cuda.get_device_name()
    assert report.machine["no_gpu"] is None
    assert all(each.seconds for each in report.times)
    assert {each.kernel for each in report.times} >= {"float32", "simulate", "auto"}


def test_a_wrong_kernel_is_exit_code_1(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(KERNELS._entries, "wrong", SlightlyWrong())
    assert main(["doctor", "--quick"]) == 1
    assert "FAILED  wrong linear 8: " in capsys.readouterr().out
    data = json.loads((tmp_path / "bitcycle-doctor.json").read_text())
    assert data["device"] == "cuda:0"
    assert data["failed"] == ["wrong"]


@pytest.fixture
def two_rounded(monkeypatch):
    """Two cases of the rounding, on one small tensor."""
    names = ("wageubn 3", "mxfp4")
    cases = [case for case in rounding._cases() if case[1] in names]
    monkeypatch.setattr(rounding, "_cases", lambda: cases)
    monkeypatch.setattr(rounding, "_tensors", lambda device: [torch.randn(5, 33).to(device)])


@pytest.mark.parametrize("rounding", ["triton"], indirect=True)
@pytest.mark.parametrize("is_left_out", [False, True])
def test_torch_is_not_compared_with_itself(two_rounded, monkeypatch, is_left_out):
    if is_left_out:
        monkeypatch.setattr(driver, "is_available", lambda x, *dtypes: False)
    found = rounding.check_rounding(Device(torch.device("cuda", 0)))
    outcomes = {check.bits: check.outcome for check in found}
    assert outcomes == {"wageubn 3": "not run", "mxfp4": "failed" if is_left_out else "passed"}
