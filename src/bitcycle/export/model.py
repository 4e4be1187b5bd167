"""`export_model`: a converted model, at its present bits, as a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from bitcycle.convert import float_state_dict
from bitcycle.export.freeze import freeze
from bitcycle.export.load import SUFFIXES
from bitcycle.export.onnx_file import write_onnx
from bitcycle.export.plain import write_plain
from bitcycle.export.safetensors_file import json_of, write_safetensors
from bitcycle.registry import unknown_name

Target = Literal["onnx", "safetensors", "torch"]


@dataclass(frozen=True, kw_only=True)
class ExportedFile:
    """What was written. ways: of an ONNX file, how many grids it says in which words."""

    path: Path
    to: Target
    num_bytes: int  # of all files
    float_bytes: int  # of the same state in float32
    ways: dict[str, int] = field(default_factory=dict)


def export_model(
    model: nn.Module,
    example_inputs: Tensor | Sequence[Tensor],
    *,
    to: Target,
    path: str | Path,
    codes: bool = False,
    source: dict[str, Any] | None = None,
) -> ExportedFile:
    """Write the model as it evaluates now, without changing it.

    example_inputs: what the model is called with; their first dimension is free in an ONNX file.
    codes: safetensors with integer weights. source: facts to keep in the file. Layers whose
    activation ranges were never observed, and layers that are not products on fixed grids of
    sbm, absmax or pow2, are an error that names them.

    >>> import tempfile, torch
    >>> from bitcycle import export
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = f"{folder}/model.pt"
    ...     done = export_model(nn.Linear(4, 2), (torch.ones(1, 4),), to="torch", path=path)
    ...     sorted(export.load_exported(path).state), done.float_bytes
    (['bias', 'weight'], 40)
    """
    path = check_target(to, path, codes)
    inputs = (example_inputs,) if isinstance(example_inputs, Tensor) else example_inputs
    frozen = freeze(model, inputs)
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = source or {}
    ways: dict[str, int] = {}
    files = [path]
    if to == "torch":
        write_plain(frozen, path, facts)
    elif to == "safetensors":
        write_safetensors(frozen, path, facts, codes=codes)
        files.append(json_of(path))
    else:
        ways = dict(write_onnx(frozen, inputs, path, facts))
    return ExportedFile(
        path=path,
        to=to,
        num_bytes=sum(file.stat().st_size for file in files),
        float_bytes=sum(4 * value.numel() for value in float_state_dict(model).values()),
        ways=ways,
    )


def check_target(to: str, path: str | Path, codes: bool) -> Path:
    """The path, if it and the options fit the kind of file."""
    if to not in SUFFIXES:
        raise unknown_name("export", to, SUFFIXES)
    if codes and to != "safetensors":
        raise ValueError(f"codes is an option of safetensors, not of {to}")
    path = Path(path)
    if path.suffix != SUFFIXES[to]:
        raise ValueError(f"a file for {to} must end in {SUFFIXES[to]}, got {path}")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file in it, such as model{SUFFIXES[to]}")
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir():
        raise ValueError(f"{path} cannot be written: {above} is a file, not a folder")
    return path
