"""Data that cannot be there, found before a study starts a process for each of its runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from bitcycle.data import DATASETS, load
from bitcycle.train.config import RunConfig


def check_data(configs: Iterable[RunConfig]) -> None:
    """Raise what the first run would: no root given, or no folder there. Reads no data."""
    for name, root in dict.fromkeys((c.data.name, c.data.root) for c in configs):
        if name not in DATASETS or not DATASETS[name].needs_root:
            continue
        if root is None or not Path(root).expanduser().is_dir():
            load(name, root)
