"""The loop of docs/scale.md in two processes; tests/test_readme.py runs it in one."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import bitcycle as bc
from tests.bitcycle.distributed.launch import run_together
from tests.bitcycle.distributed.training import digest
from tests.test_readme import ROOT, executed


def follow_the_page(folder: str) -> list[Any]:
    """Every python block, as one script."""
    blocks = executed(ROOT / "docs" / "scale.md", "python")
    lines = "\n".join("\n".join(block.lines) for block in blocks)
    names: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error", bc.BitcycleWarning)
        exec(lines.replace('"checkpoint"', repr(str(Path(folder) / "state"))), names)
    state = names["whole"]
    return [str(names["bits"].precision), digest(state[key] for key in sorted(state))]


@pytest.mark.slow
def test_the_page_runs_in_two_processes_which_agree(tmp_path):
    first, second = run_together(follow_the_page, 2, tmp_path, has_group=False, folder=tmp_path)
    assert first == second
    assert first[0] == "w8a8e8"
