"""Export a model to a file and load it back: `export_model` and `load_exported`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, overload

from torch import Tensor, nn

from bitcycle.convert import float_state_dict, quantize_model
from bitcycle.export.freeze import find_formats, freeze
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
from bitcycle.tables import THE_MODEL

READERS = {".pt": read_plain, ".safetensors": read_safetensors}
SUFFIXES = {"onnx": ".onnx", "safetensors": ".safetensors", "torch": ".pt"}
Target = Literal["onnx", "safetensors", "torch"]


@dataclass(frozen=True, kw_only=True)
class ExportedFile:
    """A written file. ways: how ONNX represents the grids, with their numbers.

    codes: whether safetensors stores integers.
    """

    path: Path
    to: Target
    num_bytes: int  # of all files
    float_bytes: int  # of the same state in float32
    ways: dict[str, int] = field(default_factory=dict)
    codes: bool = False


def export_model(
    model: nn.Module,
    example_inputs: Tensor | Sequence[Tensor],
    *,
    to: Target,
    path: str | Path,
    codes: bool = False,
    source: dict[str, Any] | None = None,
) -> ExportedFile:
    """Write a model to a file as it evaluates at its current bits; the model is unchanged.

    example_inputs: arguments of the model; an ONNX file takes any batch size. codes: store integer
    weights in safetensors. source: metadata for the file. Raises ValueError for a layer whose
    activation ranges were never observed, or that is not a product on fixed grids of sbm, absmax
    or pow2. Layers at a format keep float weights, and the file has the format's name; ONNX and
    codes refuse them.

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
    if to == "onnx" or codes:
        _check_integers(model, "an ONNX file" if to == "onnx" else "codes")
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
        codes=codes,
    )


def _check_integers(model: nn.Module, what: str) -> None:
    """Raise ValueError if a layer evaluates at a format, for files of integers."""
    formats = find_formats(model)
    if not formats:
        return
    name, bits = next(iter(formats.items()))
    shown = repr(name or THE_MODEL)
    found = f"layer {shown} evaluates at {bits}"
    if len(formats) > 1:
        found = f"{len(formats)} layers evaluate at formats, such as {shown} at {bits}"
    raise ValueError(
        f"{what} cannot express formats, only integers: {found}; export to safetensors without "
        "codes"
    )


def check_target(to: str, path: str | Path, codes: bool) -> Path:
    """The path; ValueError if it or the options do not fit the format."""
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


@dataclass(frozen=True)
class Exported:
    """The metadata and the tensors of a file; weights are floats on their grids."""

    about: dict[str, Any]
    state: dict[str, Tensor]


@overload
def load_exported(path: str | Path) -> OnnxModel | Exported: ...
@overload
def load_exported(path: str | Path, model: nn.Module) -> nn.Module: ...


def load_exported(path: str | Path, model: nn.Module | None = None) -> nn.Module | Exported:
    """Load an exported file: ONNX as an `OnnxModel`, others as `Exported` or into `model`.

    model: a float model of the same architecture. It is changed in place and returned in evaluation
    mode. A safetensors file also has activation grids: the model's layers are converted to quantize
    their activations; the weights are on their grids already. Only tensors are unpickled.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; write it with bitcycle export")
    if path.suffix == ".onnx":
        return OnnxModel(path)
    if path.suffix not in READERS:
        known = ", ".join(SUFFIXES.values())
        raise ValueError(f"{path} is not an exported model: its suffix must be one of {known}")
    about, state = READERS[path.suffix](path)
    if model is None:
        return Exported(about, state)
    _check_fit(model, state, path)
    _convert_activations(model, about, path)
    model.load_state_dict(state)
    return model.eval()


def _check_fit(model: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    """Raise ValueError if names or shapes differ, before the model is changed."""
    own, stored = (
        {name: value for name, value in tensors.items() if not name.endswith("act_range")}
        for tensors in (model.state_dict(), state)
    )
    wrong = sorted(own.keys() ^ stored.keys())
    wrong += [name for name in own.keys() & stored.keys() if own[name].shape != stored[name].shape]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise ValueError(
            f"{path} has another architecture than this model: they differ in "
            f"{', '.join(wrong[:3])}{more}"
        )


def _left_to_round(bits: Precision) -> Precision:
    """The bits of a loaded layer: weights are on their grids, but not on those of a format."""
    return bits if bits.bits["weight"].is_format else bits.replace(weight=None)


def _convert_activations(model: nn.Module, about: dict[str, Any], path: Path) -> None:
    """Convert the layers that quantize activations; a .pt file has none."""
    if "activations" not in about or "quantizer" not in about:
        return
    try:
        names = list(about["precision"])
        quantizer = QUANTIZERS[about["quantizer"]["name"]](**about["quantizer"]["options"])
        bits = {n: _left_to_round(Precision.parse(b)) for n, b in about["precision"].items()}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged ({error!r}); export the run again") from None
    chosen = None if names == [""] else names
    quantize_model(model, quantizer, only=chosen, kernel="simulate")
    set_precision(model, bits[""] if names == [""] else bits)
