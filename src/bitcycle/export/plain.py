"""`--to torch`: a plain float model's state whose weights are already on the grid, as .pt."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bitcycle.export.files import about, check_format, write_bytes
from bitcycle.export.freeze import Frozen
from bitcycle.export.state import state_on_grids


def write_plain(frozen: Frozen, path: Path, source: dict[str, Any]) -> None:
    """Write `state` (loads into the float model with strict=True) and `about`."""
    buffer = io.BytesIO()
    torch.save({"about": about(frozen.model, source), "state": state_on_grids(frozen)}, buffer)
    write_bytes(path, buffer.getvalue())


def read_plain(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """About, and the state; nothing but tensors and plain data is unpickled."""
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{path} is damaged ({reason}); export the run again") from None
    facts = stored.get("about") if isinstance(stored, dict) else None
    return check_format(facts, path), stored["state"]
