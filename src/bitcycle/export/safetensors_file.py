"""`--to safetensors`: float weights or integer codes, and beside them a JSON of their grids.

`NAME.scale` and `NAME.offset` belong to the weight NAME: value = scale * code + offset. As codes
the weight itself is `NAME.codes`: one byte each, two in a byte up to 4 bits, two bytes above 8.
`LAYER.act_range` is what training observed of a layer's inputs; the JSON has their grids as
numbers.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bitcycle.assign import quantized_layers
from bitcycle.export.files import about, check_format, write_bytes
from bitcycle.export.freeze import Frozen
from bitcycle.export.grids import Grid
from bitcycle.export.state import WeightOnGrid, state_on_grids, weights_on_grids
from bitcycle.extras import require
from bitcycle.ops.packing import pack_nibbles, unpack_nibbles
from bitcycle.train.evaluate import is_converted
from bitcycle.train.files import write_text

PURPOSE = "safetensors files"


def write_safetensors(
    frozen: Frozen, path: Path, source: dict[str, Any], *, codes: bool = False
) -> None:
    """Write PATH and its JSON; codes: the weights as integers."""
    safetensors = require("safetensors.torch", extra="train", purpose=PURPOSE)
    weights = weights_on_grids(frozen)
    tensors = state_on_grids(frozen)
    for name, weight in weights.items():
        tensors[f"{name}.scale"] = weight.grid.scale
        tensors[f"{name}.offset"] = weight.grid.offset
        if codes:
            del tensors[name]
            tensors[f"{name}.codes"] = _stored(name, weight)
    if is_converted(frozen.model):
        for entry, layer in quantized_layers(frozen.model):
            tensors[f"{entry.name}.act_range".lstrip(".")] = layer.act_range
    plain = {n: t.detach().cpu().clone(memory_format=torch.contiguous_format)
             for n, t in tensors.items()}  # fmt: skip
    content: bytes = safetensors.save(plain)
    facts = about(frozen.model, source) | {
        "sha256": _digest(content),  # of the file beside: one is of no use with another's grids
        "codes": codes,
        "weights": {name: _described(weight) for name, weight in weights.items()},
        "activations": _activations(frozen),
    }
    write_text(json_of(path), json.dumps(facts, indent=1) + "\n")
    write_bytes(path, content)


def read_safetensors(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """About with the grids, and the state: float weights on their grids, and `act_range`s."""
    safetensors = require("safetensors.torch", extra="train", purpose=PURPOSE)
    damage = require("safetensors", extra="train", purpose=PURPOSE).SafetensorError
    if not json_of(path).is_file():
        raise FileNotFoundError(f"{json_of(path)} does not exist; {path.name} needs its grids")
    try:
        stored = json.loads(json_of(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{json_of(path)} is damaged ({error}); export the run again") from None
    facts, content = check_format(stored, path), path.read_bytes()
    if facts.get("sha256", _digest(content)) != _digest(content):
        raise ValueError(f"{path} and {json_of(path).name} are damaged or of two exports "
                         "(checksum differs); export the run again")  # fmt: skip
    try:
        return facts, _state(facts, safetensors.load(content))
    # a JSON that someone has changed can name anything
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError, damage) as error:
        raise ValueError(f"{path} is damaged ({error!r}); export the run again") from None


def _state(facts: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    for name, weight in facts["weights"].items():
        scale, offset = tensors.pop(f"{name}.scale"), tensors.pop(f"{name}.offset")
        if facts["codes"]:
            grid = Grid(bits=weight["bits"], scale=scale, offset=offset, lowest=weight["lowest"])
            tensors[name] = _read(tensors.pop(f"{name}.codes"), weight, grid).values()
    return tensors


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def json_of(path: Path) -> Path:
    """Where the grids of a file are described."""
    return path.with_suffix(".json")


def _stored(name: str, weight: WeightOnGrid) -> Tensor:
    bits = weight.grid.bits
    if bits > 16:
        raise ValueError(f"weight {name!r} has {bits} bits; codes are stored up to 16")
    whole = weight.codes.to(torch.uint8 if bits <= 8 else torch.uint16)
    return pack_nibbles(whole) if bits <= 4 else whole


def _read(stored: Tensor, weight: dict[str, Any], grid: Grid) -> WeightOnGrid:
    view = torch.Size(weight["view"])
    if grid.bits <= 4:
        stored = unpack_nibbles(stored, math.prod(view), torch.uint8)
    return WeightOnGrid(grid=grid, codes=stored.view(view), shape=torch.Size(weight["shape"]))


def _described(weight: WeightOnGrid) -> dict[str, Any]:
    return {
        "bits": weight.grid.bits,
        "lowest": weight.grid.lowest,
        "shape": list(weight.shape),
        "view": list(weight.codes.shape),
    }


def _activations(frozen: Frozen) -> dict[str, list[dict[str, Any]]]:
    """Per layer, the grids of the activations it multiplies, by the row of its range."""
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
