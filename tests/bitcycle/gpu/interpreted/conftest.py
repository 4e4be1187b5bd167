"""Tests that run only in Triton's interpreter: see `test_interpreted`."""

import os

import pytest

from bitcycle.gpu import driver

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore_glob = [] if IS_INTERPRETED else ["test_*.py"]


@pytest.fixture(autouse=True)
def launched(monkeypatch):
    """Kernels read CPU tensors; the names of those that ran."""
    from bitcycle.gpu import blocks, grids, integers, maps, scaled

    names = []

    def launch(kernel, *arguments, **constants):
        names.append(kernel.__name__)
        return driver.launch(kernel, *arguments, **constants)

    for module in (blocks, grids, integers, maps, scaled):
        monkeypatch.setattr(module, "launch", launch)
    monkeypatch.setattr(driver, "_reads_cpu_tensors", True)
    monkeypatch.setattr(driver, "_failed", {})
    return names
