"""`load_exported`: any exported file back, as something that can be called or read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from torch import Tensor, nn

from bitcycle.assign import set_precision
from bitcycle.convert import quantize_model
from bitcycle.export.onnx_model import OnnxModel
from bitcycle.export.plain import read_plain
from bitcycle.export.safetensors_file import read_safetensors
from bitcycle.precision import Precision
from bitcycle.quantizers.base import QUANTIZERS

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
