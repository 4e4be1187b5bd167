"""Runs on disk at a glance."""

from __future__ import annotations

import json
from pathlib import Path

from bitcycle.train.checkpoint import Checkpoints
from bitcycle.train.directory import RunDirectory


def list_runs(root: str | Path) -> list[dict[str, str]]:
    """One row per run folder below `root`, at any depth: its state and, if finished, its result."""
    folders = sorted(path.parent for path in Path(root).rglob("config.yaml"))
    return [_row(RunDirectory(folder)) for folder in folders]


def _row(directory: RunDirectory) -> dict[str, str]:
    row = {"run": str(directory.path), "state": "not finished", "step": "0", "result": "-"}
    steps = Checkpoints(directory.checkpoints).steps()
    if steps:
        row["step"] = str(steps[-1])
    try:
        result = json.loads(directory.result_file.read_text(encoding="utf-8"))
        value = result["final"][result["metric"]]
        row["state"], row["step"] = "finished", str(result["steps"])
        row["result"] = f"{result['metric']} {value:.2f} at {result['eval_precision']}"
    except FileNotFoundError:
        pass
    except (ValueError, KeyError, TypeError):
        row["state"] = "result.json is damaged"
    return row
