"""Configuration files of a second's training, for commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

TINY: dict[str, Any] = {
    "name": "tiny",
    "model": {"name": "digits_mlp", "options": {"width": 16}},
    "data": {"subset": 160, "batch_size": 32, "validation": 40},
    "precision": {"forward": "CR:3-8:2", "backward": 8},
    "eval": {"every": 4},
    "checkpoint": {"every": 3},
    "tracking": {"log_every": 4, "tensorboard": False},
    "steps": 12,
    "threads": 1,
}


def write_config(folder: Path, **changes: Any) -> Path:
    """tiny.yaml, whose runs go below the folder; a dict in `changes` is merged."""
    settings: dict[str, Any] = {**TINY, "output": str(folder / "runs")}
    for key, value in changes.items():
        settings[key] = {**settings.get(key, {}), **value} if isinstance(value, dict) else value
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return path
