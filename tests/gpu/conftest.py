"""The tests of this folder need a CUDA device, real or emulated; without one it is one skip."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bitcycle.gpu import driver

REASON = "no CUDA device: `make test-all` runs these tests on an emulated one"
_is_ready = driver.is_ready  # which tests may replace
NEEDS_DEVICE = not torch.cuda.is_available()
collect_ignore_glob = ["*.py"] if NEEDS_DEVICE else []


class NoDevice(pytest.File):
    """Stands for the whole folder."""

    def collect(self) -> list[pytest.Item]:
        pytest.skip(REASON, allow_module_level=True)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if NEEDS_DEVICE and file_path.name == "emulated.cpp":
        return NoDevice.from_parent(parent, path=file_path)
    return None


def use(monkeypatch: pytest.MonkeyPatch, rounding: str) -> None:
    """Turn Triton kernels on ("triton") or off ("torch")."""
    monkeypatch.setenv(driver.SWITCH, "0" if rounding == "torch" else "1")
    _is_ready.cache_clear()


@pytest.fixture(autouse=True)
def rounding(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """What rounds: "triton" or "torch".

    The emulated device interprets kernels, which is slow: there a test asks for them.
    """
    from .emulated import is_emulated

    which = getattr(request, "param", "torch" if is_emulated() else "triton")
    monkeypatch.setattr(driver, "_failed", {})
    use(monkeypatch, which)
    yield which
    _is_ready.cache_clear()
