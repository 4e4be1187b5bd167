"""Nested training state as a safetensors file and a JSON file: nothing is ever unpickled.

Tensors go to the one, everything else to the other, where `{"$tensor": key}` marks their places.
Tuples, counters and dicts with keys that are not text are marked too, so that a state comes back
as it was.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bitcycle.extras import require

_PURPOSE = "checkpoints"


def split_state(state: Any) -> tuple[Any, dict[str, Tensor]]:
    """Plain JSON data, and the tensors it refers to.

    >>> plain, tensors = split_state({"lr": 0.1, "state": {0: torch.zeros(2)}})
    >>> plain
    {'lr': 0.1, 'state': {'$items': [[0, {'$tensor': 'state.0'}]]}}
    """
    tensors: dict[str, Tensor] = {}
    return _split(state, "", tensors), tensors


def _split(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        while path in tensors:  # {"a.b": x, "a": {"b": y}}
            path += "'"
        # a copy: safetensors refuses tensors that share memory (tied weights)
        tensors[path] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {"$tensor": path}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Counter):
        return {"$counter": [[_split(k, path, tensors), n] for k, n in value.items()]}
    if isinstance(value, Mapping):
        inner = {
            key: _split(item, f"{path}.{key}" if path else str(key), tensors)
            for key, item in value.items()
        }
        if all(isinstance(key, str) and not key.startswith("$") for key in inner):
            return inner
        return {"$items": [[_split(key, path, tensors), item] for key, item in inner.items()]}
    if isinstance(value, list | tuple):
        items = [_split(item, f"{path}.{i}", tensors) for i, item in enumerate(value)]
        return items if isinstance(value, list) else {"$tuple": items}
    raise TypeError(f"state at {path!r} is a {type(value).__name__}, which is not saved")


def join_state(plain: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The inverse of `split_state`."""
    if isinstance(plain, list):
        return [join_state(item, tensors) for item in plain]
    if not isinstance(plain, dict):
        return plain
    if "$tensor" in plain:
        return tensors[plain["$tensor"]]
    if "$tuple" in plain:
        return tuple(join_state(item, tensors) for item in plain["$tuple"])
    if "$counter" in plain:
        return Counter({join_state(key, tensors): n for key, n in plain["$counter"]})
    if "$items" in plain:
        return {join_state(k, tensors): join_state(item, tensors) for k, item in plain["$items"]}
    return {key: join_state(item, tensors) for key, item in plain.items()}


def write_state(folder: Path, name: str, state: Any) -> list[Path]:
    """Write `name.json` and, if there are tensors, `name.safetensors`; returns the files."""
    safetensors = require("safetensors.torch", extra="train", purpose=_PURPOSE)
    plain, tensors = split_state(state)
    paths = [folder / f"{name}.json"]
    paths[0].write_text(json.dumps(plain), encoding="utf-8")
    if tensors:
        paths.append(folder / f"{name}.safetensors")
        # through bytes: save_file reports a full disk in words of its own, write_bytes as OSError
        paths[1].write_bytes(safetensors.save(tensors))
    return paths


def read_state(folder: Path, name: str) -> Any:
    """The state that `write_state` wrote; ValueError when the files hold anything else."""
    safetensors = require("safetensors.torch", extra="train", purpose=_PURPOSE)
    damage = require("safetensors", extra="train", purpose=_PURPOSE).SafetensorError
    path = folder / f"{name}.safetensors"
    try:
        plain = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        tensors = safetensors.load(path.read_bytes()) if path.exists() else {}
        return join_state(plain, tensors)
    except (ValueError, LookupError, TypeError, RecursionError, damage) as error:
        raise ValueError(
            f"{folder / name}.json and .safetensors are no saved state ({error!r})"
        ) from None
