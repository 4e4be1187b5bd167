"""When kernels are used; without a GPU, not even the files that need Triton are imported."""

import os
import subprocess
import sys
from types import SimpleNamespace

import torch

from bitcycle.gpu import driver

STEP = """
import sys, torch, bitcycle as bc
model = bc.quantize_model(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)))
model(torch.randn(3, 8)).sum().backward()
assert not {"bitcycle.gpu.arithmetic", "bitcycle.gpu.grids"} & set(sys.modules)
"""


def test_a_step_on_the_cpu_does_not_import_kernels():
    # not "triton": torch imports it. Without the native library every operation asks for kernels
    env = {**os.environ, "BITCYCLE_NATIVE": "0", "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-W", "ignore", "-c", STEP]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_tensor_of_the_cpu_is_not_for_kernels():
    assert not driver.is_available(torch.zeros(3), torch.float32)


def test_kernels_need_a_dtype_and_no_graph(monkeypatch):
    monkeypatch.setattr(driver, "_reads_cpu_tensors", True)
    monkeypatch.setattr(driver, "is_ready", lambda: True)
    x = torch.zeros(3)
    assert driver.is_available(x, torch.float32)
    assert not driver.is_available(x, torch.uint8)
    assert not driver.is_available(x.clone().requires_grad_(), torch.float32)
    assert not driver.is_available(x.to_sparse(), torch.float32)
    assert not driver.is_available(torch.empty(3, device="meta"), torch.float32)


def test_the_switch_turns_kernels_off(monkeypatch):
    for value, interprets, expected in (("0", "1", False), ("1", "1", True), ("1", "0", False)):
        monkeypatch.setenv("BITCYCLE_GPU", value)
        monkeypatch.setenv("TRITON_INTERPRET", interprets)
        # without a GPU and without the interpreter there is no active driver
        if interprets == "1" or not torch.cuda.is_available():
            assert (driver.missing_reason() is None) is expected


def test_the_reason_without_kernels_is_the_first_that_is_missing(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    for switch, has_triton, expected in (
        ("0", True, "switched off by BITCYCLE_GPU=0"),
        ("1", False, "Triton is not installed"),
        ("1", True, None),
    ):
        monkeypatch.setenv("BITCYCLE_GPU", switch)
        found = object() if has_triton else None
        monkeypatch.setattr(driver.importlib.util, "find_spec", lambda name, found=found: found)
        assert driver.missing_reason() == expected


def test_the_class_of_a_device_is_its_compute_capability_or_amds_name(monkeypatch):
    device_class = driver.device_class.__wrapped__
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (8, index))
    assert [device_class(0), device_class(9)] == ["sm_80", "sm_89"]
    names = SimpleNamespace(gcnArchName="gfx942:sramecc+:xnack-")
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: names)
    assert device_class(0) == "gfx942"
