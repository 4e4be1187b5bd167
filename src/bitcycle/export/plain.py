"""`--to torch`: a plain float model's state whose weights are already on the grid, as .pt."""

from __future__ import annotations

import io
import zipfile
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
    content = io.BytesIO(path.read_bytes())
    try:
        sizes = _check_archive(content)
        content.seek(0)  # torch.load reads from where it stands
        stored = torch.load(content, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged archive or pickle can fail in any way
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{path} is damaged ({reason}); export the run again") from None
    facts = check_format(stored.get("about") if isinstance(stored, dict) else None, path)
    state = stored.get("state")
    if not isinstance(state, dict) or not all(isinstance(t, Tensor) for t in state.values()):
        raise ValueError(f"{path} is damaged (its state is not tensors); export the run again")
    for name, tensor in state.items():
        if tensor.layout != torch.strided or tensor.untyped_storage().nbytes() not in sizes:
            raise ValueError(f"{path} is damaged (tensor {name!r}); export the run again")
    return facts, state


def _check_archive(content: io.BytesIO) -> set[int]:
    """The sizes of its records, whose checksums are right; torch.load reads older formats too."""
    with zipfile.ZipFile(content) as archive:
        if any(record.compress_type != zipfile.ZIP_STORED for record in archive.infolist()):
            raise ValueError("packed records")
        if damaged := archive.testzip():
            raise ValueError(f"the checksum of {damaged} differs")
        return {record.file_size for record in archive.infolist()}
