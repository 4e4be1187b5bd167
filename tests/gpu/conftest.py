"""The tests of this folder need a CUDA device, real or emulated; without one it is one skip."""

from pathlib import Path

import pytest
import torch

REASON = "no CUDA device: `make test-all` runs these tests on an emulated one"
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
