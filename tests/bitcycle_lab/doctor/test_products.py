"""The products of the self-test: what is wrong is found, what is right passes."""

import pytest
import torch

from bitcycle.kernels.base import KERNELS
from bitcycle_lab.doctor.check import Device
from bitcycle_lab.doctor.products import Exact, check_products

from .kernels import Elsewhere, Raising, SlightlyWrong
from .small import NAMES, make_small


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    make_small(monkeypatch)


def checks_of(name):
    found = check_products(Device(torch.device("cpu")))
    return [check for check in found if check.by == name]


def test_every_kernel_is_right_or_says_why_it_does_not_run():
    found = check_products(Device(torch.device("cpu")))
    assert {check.by for check in found} == set(KERNELS)
    assert [check for check in found if check.outcome == "failed"] == []
    for name, kernel in KERNELS.items():
        own = [check for check in found if check.by == name]
        why = kernel.reason_against_device("cpu")
        if why is not None:
            assert [(check.outcome, check.reason) for check in own] == [("not run", why)]
            continue
        assert {check.what for check in own} == {*NAMES, "recurrent"}
        assert all(0 < check.error <= 1 for check in own)


def test_a_gradient_that_is_off_by_a_thousandth_fails_and_is_measured(monkeypatch):
    monkeypatch.setitem(KERNELS._entries, "wrong", SlightlyWrong())
    failed = {c.what for c in checks_of("wrong") if c.outcome == "failed"}
    assert failed == set(NAMES)  # recurrent steps have no gradient here
    worst = max(check.error for check in checks_of("wrong"))
    assert 1 < worst <= 1e-3 * 2**18 * 1.01


def test_a_kernel_that_raises_fails_and_the_others_go_on(monkeypatch):
    monkeypatch.setitem(KERNELS._entries, "raising", Raising())
    found = check_products(Device(torch.device("cpu")))
    assert {c.by for c in found if c.outcome == "failed"} == {"raising"}
    reasons = {c.reason for c in found if c.outcome == "failed"}
    assert reasons == {"RuntimeError: no such instruction"}


def test_a_kernel_of_another_device_is_no_failure(monkeypatch):
    monkeypatch.setitem(KERNELS._entries, "elsewhere", Elsewhere())
    [check] = checks_of("elsewhere")
    assert (check.outcome, check.reason) == ("not run", "not on cpu")


def test_the_error_is_a_share_of_the_bound():
    exact = Exact(torch.tensor([1.0, 2.0]).double(), torch.tensor([4.0, 8.0]).double())
    assert exact.share_of(torch.tensor([1.5, 2.0]), 0.25) == 0.5
    assert exact.share_of(torch.tensor([1.0, 0.0]), 0.25) == 1.0
    assert exact.share_of(torch.tensor([1.0, float("nan")]), 0.25) == float("inf")
    with pytest.raises(ArithmeticError):
        exact.share_of(torch.zeros(3), 0.25)


def test_a_device_that_no_longer_answers_ends_the_checks(monkeypatch):
    device = Device(torch.device("cpu"))
    assert device.run("a", "linear", "8", lambda: 0.5).outcome == "passed"
    monkeypatch.setattr(Device, "_answers", lambda self: False)

    def fail():
        raise RuntimeError("illegal memory access")

    assert device.run("b", "linear", "8", fail).outcome == "failed"
    after = device.run("c", "linear", "8", lambda: 0.5)
    assert after.outcome == "not run"
    assert "b, linear 8" in after.reason
