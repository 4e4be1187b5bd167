"""Write, verify and load the checkpoints of a run.

A checkpoint is a folder `step-00001000` with a JSON and a safetensors file per part of the state,
and a manifest of their SHA-256 sums. `Checkpoints.save` writes it below a temporary name, flushes
it to disk and renames it: a folder with the final name is complete. The manifest detects later
damage.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitcycle.extras import require
from bitcycle.files import FORM, check_form, sync
from bitcycle.warnings import BitcycleWarning

if TYPE_CHECKING:
    from torch import Tensor

MANIFEST = "manifest.json"
BEST = "best"
_NAME = re.compile(r"step-(\d+)")
_PURPOSE = "checkpoints"


class CheckpointError(OSError):
    """A checkpoint cannot be read or written."""


class Checkpoints:
    """The checkpoints of a run: writes them, keeps the last few, loads the last complete one."""

    def __init__(self, folder: Path, *, keep: int = 2) -> None:
        self.folder, self.keep = folder, keep

    def steps(self) -> list[int]:
        """The steps of all checkpoints, complete or not, in order."""
        if not self.folder.is_dir():
            return []
        names = (_NAME.fullmatch(entry.name) for entry in self.folder.iterdir())
        return sorted(int(match[1]) for match in names if match)

    def save(self, step: int, state: Mapping[str, Any]) -> Path:
        """Write the checkpoint of a step and delete the oldest beyond `keep`."""
        self.remove_leftovers()
        path = self.folder / checkpoint_name(step)
        self._write(path, step, state)
        # later ones are damaged: the run resumed before them and overwrites them
        older = [other for other in self.steps() if other < step]
        for old in older[: len(older) - self.keep + 1]:
            shutil.rmtree(self.folder / checkpoint_name(old), ignore_errors=True)
        return path

    def save_best(self, step: int, state: Mapping[str, Any]) -> None:
        """Replace the checkpoint with the best validation metric."""
        self._write(self.folder / BEST, step, state)

    def _write(self, path: Path, step: int, state: Mapping[str, Any]) -> None:
        temporary = path.with_name(f"{path.name}.tmp")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            files = [f for name, part in state.items() for f in write_state(temporary, name, part)]
            sums = {file.name: file_digest(file) for file in files}
            manifest = temporary / MANIFEST
            content = {
                "form": FORM,
                "step": step,
                "sha256": sums,
                "manifest": manifest_digest(step, sums),
            }
            manifest.write_text(json.dumps(content, indent=2), encoding="utf-8")
            for file in (*files, manifest, temporary):
                sync(file)
            if path.exists():  # the same step again, or an older best
                aside = path.with_name(f"{path.name}.old.tmp")
                shutil.rmtree(aside, ignore_errors=True)
                path.rename(aside)
                temporary.rename(path)
                shutil.rmtree(aside, ignore_errors=True)
            else:
                temporary.rename(path)
            sync(path.parent)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            complete = [
                s for s in self.steps() if not find_damage(self.folder / checkpoint_name(s))
            ]
            last = (
                f"the last complete one is of step {complete[-1]}"
                if complete
                else "there is no other"
            )
            raise CheckpointError(
                f"the checkpoint of step {step} could not be written to {path.parent}: {error}; "
                f"{last}"
            ) from error

    def remove_leftovers(self) -> None:
        """Delete incomplete checkpoints of a killed process; restore the one it was replacing."""
        for aside in self.folder.glob("*.old.tmp"):
            place = aside.with_name(aside.name.removesuffix(".old.tmp"))
            if not place.exists() and not find_damage(aside):
                aside.rename(place)
        for leftover in self.folder.glob("*.tmp"):
            shutil.rmtree(leftover, ignore_errors=True)

    def load_newest(self) -> tuple[int, dict[str, Any]] | None:
        """The step and state of the last complete checkpoint; warns of damaged ones it skips.

        None if there is no checkpoint; CheckpointError if all are damaged. Writes nothing, because
        another process may own the run.
        """
        problems: list[str] = []
        for step in reversed(self.steps()):
            path = self.folder / checkpoint_name(step)
            problem = find_damage(path)
            if problem is None:
                if problems:
                    text = "; ".join(problems)
                    message = f"skipped a damaged checkpoint ({text}); loaded that of step {step}"
                    warnings.warn(message, BitcycleWarning, stacklevel=2)
                return step, _load(path)
            problems.append(f"{path.name}: {problem}")
        if problems:
            raise CheckpointError(f"no usable checkpoint in {self.folder}: {'; '.join(problems)}")
        return None

    def load(self, step: int) -> dict[str, Any]:
        """The state after a step. Raises CheckpointError if it was not kept or is damaged."""
        path = self.folder / checkpoint_name(step)
        problem = find_damage(path) if path.is_dir() else f"there are those of {self.steps()}"
        if problem is not None:
            raise CheckpointError(
                f"no usable checkpoint of step {step} in {self.folder}: {problem}"
            )
        return _load(path)

    def read_newest(self, name: str) -> tuple[int, Any] | None:
        """The step and one part of the last complete checkpoint; None if there is none."""
        for step in reversed(self.steps()):
            path = self.folder / checkpoint_name(step)
            if find_damage(path) is None:
                return step, read_state(path, name)
        return None

    def load_best(self) -> tuple[int, dict[str, Any]] | None:
        """The step and state with the best validation metric; None if there is none."""
        path = self.folder / BEST
        if not path.is_dir():
            return None
        problem = find_damage(path)
        if problem is not None:
            raise CheckpointError(f"{path}: {problem}")
        return int(_read_manifest(path)["step"]), _load(path)


def checkpoint_name(step: int) -> str:
    """The folder of a step's checkpoint.

    >>> checkpoint_name(1000)
    'step-00001000'
    """
    return f"step-{step:08d}"


def find_damage(path: Path) -> str | None:
    """The first damage to a checkpoint's files; None if they are complete and unchanged."""
    try:
        manifest = _read_manifest(path)
        check_form(manifest.get("form"), "it")
        sums: dict[str, str] = manifest["sha256"]
        if manifest["manifest"] != manifest_digest(manifest["step"], sums):
            return f"{MANIFEST} has changed (checksum differs)"
        named = _NAME.fullmatch(path.name)
        if named and int(named[1]) != manifest["step"]:
            return f"it is the checkpoint of step {manifest['step']}"
        for name, expected in sums.items():
            file = path / name
            if not is_inside(path, name):
                return f"{MANIFEST} names {name!r}, which is not a file of its folder"
            if not file.is_file():
                return f"{name} is missing"
            if file_digest(file) != expected:
                return f"{name} has changed (checksum differs)"
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"{MANIFEST} cannot be read ({error or type(error).__name__})"
    return None


def is_inside(folder: Path, name: str) -> bool:
    """Whether a manifest's name is that of a file in its own folder: no path and no link.

    >>> [is_inside(Path("x"), name) for name in ("run.json", "../run.json", "/run.json", "..")]
    [True, False, False, False]
    """
    is_plain = name == Path(name).name and name != ".."
    return is_plain and not (folder / name).is_symlink()


@contextmanager
def explain_load_errors(step: int) -> Iterator[None]:
    """Turn errors from loading a checkpoint's state into a run into CheckpointError."""
    try:
        yield
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RuntimeError,
        OverflowError,
    ) as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise CheckpointError(
            f"the checkpoint of step {step} does not fit this run ({reason})"
        ) from error


def _load(path: Path) -> dict[str, Any]:
    """The parts of a verified checkpoint, by name."""
    names = {Path(file).stem for file in _read_manifest(path)["sha256"]}
    try:
        return {name: read_state(path, name) for name in sorted(names)}
    except ValueError as error:  # the checksums fit, so something else wrote it
        raise CheckpointError(str(error)) from None


def _read_manifest(path: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    return manifest


def manifest_digest(step: int, sums: Mapping[str, str]) -> str:
    """SHA-256 over a manifest's step and sums."""
    return hashlib.sha256(json.dumps([step, sums], sort_keys=True).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


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
    """Read what `write_state` wrote; ValueError if the files hold anything else."""
    safetensors = require("safetensors.torch", extra="train", purpose=_PURPOSE)
    damaged = require("safetensors", extra="train", purpose=_PURPOSE).SafetensorError
    path = folder / f"{name}.safetensors"
    try:
        plain = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        tensors = safetensors.load(path.read_bytes()) if path.exists() else {}
        return join_state(plain, tensors)
    except (ValueError, LookupError, TypeError, RecursionError, damaged) as error:
        raise ValueError(
            f"{folder / name}.json and .safetensors do not hold a saved state ({error!r})"
        ) from None


def split_state(state: Any) -> tuple[Any, dict[str, Tensor]]:
    """Split a state dict into JSON data and the tensors it refers to.

    >>> import torch
    >>> plain, tensors = split_state({"lr": 0.1, "state": {0: torch.zeros(2)}})
    >>> plain
    {'lr': 0.1, 'state': {'$items': [[0, {'$tensor': 'state.0'}]]}}
    """
    tensors: dict[str, Tensor] = {}
    return _split(state, "", tensors), tensors


def _split(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    import torch  # here: a list of runs reads their checkpoints' steps without torch

    if isinstance(value, torch.Tensor):
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
    raise TypeError(f"state at {path!r} is a {type(value).__name__}, which cannot be saved")


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
