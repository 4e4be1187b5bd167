"""Configurations that are trained: a whole run, or a message and no folder."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bitcycle_lab.train.config_file import option_names
from tests.bitcycle_lab.cli.runs import TINY
from tests.damage import little_memory

from .commands import assert_graceful, run

values = st.sampled_from(
    [-1, 0, 1, 2, 7, -0.5, 0.0, 0.25, 1.0, 3.5, 1e-30, 1e30, float("nan"), float("inf"), None, True,
     "", "auto", "8", "fp32", "CR:3-8:2", "CR:auto-8:2", "w4a4", "x", [], [0.5], ["x"], {},
     {"x": 1}, {"*": 4}, {"name": "CR", "low": 3, "high": 8}]
)  # fmt: skip
KEYS = [key for key in option_names() if key not in ("output", "threads", "steps", "epochs")]
quick = settings(max_examples=8, derandomize=True, suppress_health_check=list(HealthCheck))
several = st.dictionaries(st.sampled_from(KEYS), values, min_size=1, max_size=2)


def check(changes: dict[str, Any]) -> None:
    """Two steps of training with these settings."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config: dict[str, Any] = {
            **{key: dict(v) if isinstance(v, dict) else v for key, v in TINY.items()},
            "output": f"{name}/runs",
            "steps": 2,
        }
        config["precision"]["forward"] = 4
        for key, value in changes.items():
            *outer, last = key.split(".")
            inner = config
            for part in outer:
                inner = inner.setdefault(part, {})
            inner[last] = value
        path = folder / "file.yaml"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        with little_memory(2):
            outcome = run(["train", path, "--quiet"])
        assert_graceful(outcome)
        assert not list(folder.rglob("*.tmp")), outcome
        made = list((folder / "runs").glob("*")) if (folder / "runs").exists() else []
        if outcome.code == 0:
            assert all((run_folder / "result.json").exists() for run_folder in made)
        elif outcome.code == 2:
            assert made == [], outcome
        else:
            assert all((run_folder / "config.yaml").exists() for run_folder in made), outcome


@given(several)
@quick
def test_a_setting_trains_or_is_refused_before_anything_is_written(changes):
    check(changes)


@pytest.mark.slow
@given(several)
@settings(quick, max_examples=100)
def test_that_holds_for_many_settings(changes):
    check(changes)
