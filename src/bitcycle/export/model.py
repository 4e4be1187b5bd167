"""`export_model`: a converted model, at its present bits, as a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, overload

from torch import Tensor, nn

from bitcycle.convert import float_state_dict, quantize_model
from bitcycle.export.freeze import freeze
from bitcycle.export.onnx_file import OnnxModel, write_onnx
from bitcycle.export.state_file import (
    json_of,
    read_plain,
    read_safetensors,
    write_plain,
    write_safetensors,
)
from bitcycle.model_precision import set_precision
from bitcycle.precision import Precision
from bitcycle.quantizers.base import QUANTIZERS
from bitcycle.registry import unknown_name

READERS = {".pt": read_plain, ".safetensors": read_safetensors}
SUFFIXES = {"onnx": ".onnx", "safetensors": ".safetensors", "torch": ".pt"}


@dataclass(frozen=True)
class Exported:
    """The tensors of a file, weights as floats on their grids, and what it says about itself."""

    about: dict[str, Any]
    state: dict[str, Tensor]


@overload
def load_exported(path: str | Path) -> OnnxModel | Exported: ...
@overload
def load_exported(path: str | Path, model: nn.Module) -> nn.Module: ...


def load_exported(path: str | Path, model: nn.Module | None = None) -> nn.Module | Exported:
    """An ONNX file as a module (`OnnxModel`); others as `Exported`, or loaded into `model`.

    model: a float model of the same architecture, which takes the state in place and is returned in
    evaluation mode. From safetensors it also takes the activation grids: its layers are converted
    and put activations on the grids of the export, the weights being on theirs already. Nothing is
    unpickled but tensors.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; write it with bitcycle export")
    if path.suffix == ".onnx":
        return OnnxModel(path)
    if path.suffix not in READERS:
        known = ", ".join(SUFFIXES.values())
        raise ValueError(f"{path} is not an exported model: its name must end in one of {known}")
    about, state = READERS[path.suffix](path)
    if model is None:
        return Exported(about, state)
    _check_fit(model, state, path)
    _take_act_grids(model, about, path)
    model.load_state_dict(state)
    return model.eval()


def _check_fit(model: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    """Raise before anything of the model is changed."""
    own, given = (
        {name: value for name, value in tensors.items() if not name.endswith("act_range")}
        for tensors in (model.state_dict(), state)
    )
    wrong = sorted(own.keys() ^ given.keys())
    wrong += [name for name in own.keys() & given.keys() if own[name].shape != given[name].shape]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise ValueError(
            f"{path} was written of another architecture than this model: they differ in "
            f"{', '.join(wrong[:3])}{more}"
        )


def _take_act_grids(model: nn.Module, about: dict[str, Any], path: Path) -> None:
    """Convert the layers that put activations on grids; a .pt has none."""
    if "activations" not in about or "quantizer" not in about:
        return
    try:
        names = list(about["precision"])
        rule = about["quantizer"]
        quantizer = QUANTIZERS[rule["name"]](**rule["options"])
        bits = {n: Precision.parse(b).replace(weight=None) for n, b in about["precision"].items()}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged ({error!r}); export the run again") from None
    quantize_model(model, quantizer, only=None if names == [""] else names, kernel="simulate")
    set_precision(model, bits[""] if names == [""] else bits)


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
