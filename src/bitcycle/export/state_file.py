"""Safetensors files and torch state dicts of a frozen model, with its weights on their grids.

A parameter may be multiplied in parts, such as the packed projections of nn.MultiheadAttention:
the parts are rows, each with its own grid.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bitcycle.convert import float_state_dict
from bitcycle.export.freeze import Frozen, FrozenProduct, Grid
from bitcycle.export.metadata import about, check_about
from bitcycle.extras import require
from bitcycle.files import write_bytes, write_text
from bitcycle.model_precision import is_converted, quantized_layers
from bitcycle.ops.packing import pack_nibbles, unpack_nibbles

PURPOSE = "safetensors files"


def write_safetensors(
    frozen: Frozen, path: Path, source: dict[str, Any], *, codes: bool = False
) -> None:
    """Write a safetensors file and the JSON of its grids; codes: store integer weights."""
    safetensors = require("safetensors.torch", extra="export", purpose=PURPOSE)
    weights = weights_on_grids(frozen)
    tensors = state_on_grids(frozen)
    for name, weight in weights.items():
        tensors[f"{name}.scale"] = weight.grid.scale
        tensors[f"{name}.offset"] = weight.grid.offset
        if codes:
            del tensors[name]
            tensors[f"{name}.codes"] = _pack_codes(name, weight)
    if is_converted(frozen.model):
        for entry, layer in quantized_layers(frozen.model):
            tensors[f"{entry.name}.act_range".lstrip(".")] = layer.act_range
    plain = {n: t.detach().cpu().clone(memory_format=torch.contiguous_format)
             for n, t in tensors.items()}  # fmt: skip
    content: bytes = safetensors.save(plain)
    facts = about(frozen.model, source) | {
        "sha256": _digest(content),  # the grids belong to this safetensors file
        "codes": codes,
        "weights": {name: _describe(weight) for name, weight in weights.items()},
        "activations": _activations(frozen),
    }
    write_text(json_of(path), json.dumps(facts, indent=1) + "\n")
    write_bytes(path, content)


def read_safetensors(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The metadata with the grids, and the state: float weights and `act_range`s."""
    safetensors = require("safetensors.torch", extra="export", purpose=PURPOSE)
    damage = require("safetensors", extra="export", purpose=PURPOSE).SafetensorError
    if not json_of(path).is_file():
        raise FileNotFoundError(f"{json_of(path)} does not exist; {path.name} needs its grids")
    try:
        stored = json.loads(json_of(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{json_of(path)} is damaged ({error}); export the run again") from None
    facts, content = check_about(stored, path), path.read_bytes()
    if facts.get("sha256") != _digest(content):
        raise ValueError(f"{path} and {json_of(path).name} are damaged or of two exports "
                         "(checksum differs); export the run again")  # fmt: skip
    try:
        return facts, _state(facts, safetensors.load(content))
    # a JSON file that was edited can name anything
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError, damage) as error:
        raise ValueError(f"{path} is damaged ({error!r}); export the run again") from None


def json_of(path: Path) -> Path:
    """The JSON file with the grids of a safetensors file."""
    return path.with_suffix(".json")


def _state(facts: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    for name, weight in facts["weights"].items():
        scale, offset = tensors.pop(f"{name}.scale"), tensors.pop(f"{name}.offset")
        if facts["codes"]:
            grid = Grid(bits=weight["bits"], scale=scale, offset=offset, lowest=weight["lowest"])
            tensors[name] = _unpack_codes(tensors.pop(f"{name}.codes"), weight, grid).values()
    return tensors


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _pack_codes(name: str, weight: WeightOnGrid) -> Tensor:
    bits = weight.grid.bits
    if bits > 16:
        raise ValueError(f"weight {name!r} has {bits} bits; codes are stored up to 16")
    whole = weight.codes.to(torch.uint8 if bits <= 8 else torch.uint16)
    return pack_nibbles(whole) if bits <= 4 else whole


def _unpack_codes(stored: Tensor, weight: dict[str, Any], grid: Grid) -> WeightOnGrid:
    view = torch.Size(weight["view"])
    if grid.bits <= 4:
        stored = unpack_nibbles(stored, math.prod(view))
    return WeightOnGrid(grid=grid, codes=stored.view(view), shape=torch.Size(weight["shape"]))


def _describe(weight: WeightOnGrid) -> dict[str, Any]:
    return {
        "bits": weight.grid.bits,
        "lowest": weight.grid.lowest,
        "shape": list(weight.shape),
        "view": list(weight.codes.shape),
    }


def _activations(frozen: Frozen) -> dict[str, list[dict[str, Any]]]:
    """The activation grids of each layer, by the row of its ranges."""
    found: dict[str, list[dict[str, Any]]] = {}
    for product in frozen.products:
        grids = {product.row: product.first}
        if product.weight is None:
            grids[product.row + 1] = product.second
        for row, grid in grids.items():
            if grid is not None:
                found.setdefault(product.layer, []).append(
                    {"row": row, "bits": grid.bits, "lowest": grid.lowest,
                     "scale": float(grid.scale), "offset": float(grid.offset)}
                )  # fmt: skip
    return found


def write_plain(frozen: Frozen, path: Path, source: dict[str, Any]) -> None:
    """Write a torch file with `state`, which loads into the float model, and `about`."""
    buffer = io.BytesIO()
    torch.save({"about": about(frozen.model, source), "state": state_on_grids(frozen)}, buffer)
    write_bytes(path, buffer.getvalue())


def read_plain(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The metadata and the state of a torch file; only tensors and plain data are unpickled."""
    content = io.BytesIO(path.read_bytes())
    try:
        sizes = _check_archive(content)
        content.seek(0)  # torch.load reads from the current position
        stored = torch.load(content, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged archive or pickle can fail in any way
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{path} is damaged ({reason}); export the run again") from None
    facts = check_about(stored.get("about") if isinstance(stored, dict) else None, path)
    state = stored.get("state")
    if not isinstance(state, dict) or not all(isinstance(t, Tensor) for t in state.values()):
        raise ValueError(f"{path} is damaged (its state is not tensors); export the run again")
    for name, tensor in state.items():
        if tensor.layout != torch.strided or tensor.untyped_storage().nbytes() not in sizes:
            raise ValueError(f"{path} is damaged (tensor {name!r}); export the run again")
    return facts, state


def _check_archive(content: io.BytesIO) -> set[int]:
    """The sizes of an archive's records; ValueError for other formats and wrong checksums."""
    with zipfile.ZipFile(content) as archive:
        if any(record.compress_type != zipfile.ZIP_STORED for record in archive.infolist()):
            raise ValueError("packed records")
        if damaged := archive.testzip():
            raise ValueError(f"the checksum of {damaged} differs")
        return {record.file_size for record in archive.infolist()}


@dataclass(frozen=True, kw_only=True)
class WeightOnGrid:
    """A weight as codes, in the shape against which the grid broadcasts."""

    grid: Grid
    codes: Tensor
    shape: torch.Size  # of the parameter

    def values(self) -> Tensor:
        """The values of the codes, in the parameter's shape."""
        return self.grid.decode(self.codes).view(self.shape)


def state_on_grids(frozen: Frozen) -> dict[str, Tensor]:
    """The float state dict, with weights rounded to their grids."""
    state = {name: value.detach().cpu() for name, value in float_state_dict(frozen.model).items()}
    for name, weight in weights_on_grids(frozen).items():
        state[name] = weight.values().detach().cpu()
    return state


def weights_on_grids(frozen: Frozen) -> dict[str, WeightOnGrid]:
    """The parameters that are multiplied on a grid, by name."""
    found = {}
    for name, parameter in frozen.model.named_parameters():
        parts = [product for product in frozen.products if _is_part(product, parameter)]
        if not parts:
            continue
        if num_owners(frozen.model, parameter) > 1:
            raise ValueError(
                f"weight {name!r} is shared by modules that may use different grids; export to "
                "onnx, which stores both"
            )
        found[name] = _join_parts(name, parameter, parts)
    return found


def _join_parts(name: str, parameter: Tensor, parts: list[FrozenProduct]) -> WeightOnGrid:
    """Join the parts of a parameter in the order of its rows."""
    grids, codes = [], []
    for part in sorted(parts, key=_position):
        assert part.weight is not None
        assert part.second is not None
        if not part.weight.is_contiguous():
            raise ValueError(f"weight {name!r} is transposed in its product: export to onnx")
        grids.append(part.second)
        codes.append(part.codes)
    if sum(each.numel() for each in codes) != parameter.numel():
        raise ValueError(f"weight {name!r} is only partly multiplied: export to onnx")
    grid = grids[0]
    if len(grids) > 1:
        grid = Grid(
            bits=grid.bits,
            scale=torch.cat([each.scale for each in grids]),
            offset=torch.cat([each.offset for each in grids]),
            lowest=grid.lowest,
        )
    return WeightOnGrid(grid=grid, codes=torch.cat(codes), shape=parameter.shape)


def _is_part(product: FrozenProduct, parameter: Tensor) -> bool:
    if product.weight is None or product.second is None:
        return False
    return _storage(product.weight) == _storage(parameter)


def _storage(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _position(product: FrozenProduct) -> int:
    assert product.weight is not None
    return int(product.weight.storage_offset())


def num_owners(model: nn.Module, parameter: Tensor) -> int:
    """The number of modules that share a parameter."""
    return sum(
        any(other is parameter for other in module._parameters.values())
        for module in model.modules()
    )
