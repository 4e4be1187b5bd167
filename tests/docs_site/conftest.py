"""The site, built once as `make docs` builds it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def build(config: Path, target: Path) -> subprocess.CompletedProcess[str]:
    """`mkdocs build --strict`, without the theme's notice about its own future."""
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", config, "-d", target],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """The folder and what was said while it was built."""
    target = tmp_path_factory.mktemp("site") / "site"
    done = build(ROOT / "mkdocs.yml", target)
    assert done.returncode == 0, done.stderr
    return target, done.stdout + done.stderr


@pytest.fixture(scope="session")
def site(built):
    return built[0]
