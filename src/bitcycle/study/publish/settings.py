"""A configuration as the few settings that are not the default, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from bitcycle.train.config import RunConfig
from bitcycle.train.configfile import to_dict

DEFAULT = RunConfig(steps=1)  # a run has a length, which has no default
NOT_PART = ("seed", "output", "tracking", "checkpoint", "data.root", "data.cache_dir")


def to_settings(config: RunConfig) -> dict[str, Any]:
    """Without seed and folders, which belong to a run and a machine.

    >>> to_settings(RunConfig(name="a", steps=10, output="elsewhere"))
    {'name': 'a', 'steps': 10}
    """
    return _differing(to_dict(config), {**to_dict(DEFAULT), "steps": None}, "")


def _differing(own: Mapping[str, Any], default: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in own.items():
        if prefix + key in NOT_PART or value == default.get(key):
            continue
        is_section = isinstance(value, Mapping) and not prefix
        found[key] = _differing(value, default[key], f"{key}.") if is_section else value
    if isinstance(model := found.get("path"), str) and prefix == "model.":
        found["path"] = model.rstrip("/").rpartition("/")[2]  # the folders above it are a machine's
    return found


def from_settings(settings: Mapping[str, Any]) -> RunConfig:
    """What `to_settings` was given, with the defaults of today.

    >>> from_settings({"name": "a", "steps": 10, "precision": {"forward": "CR:3-8:2"}}).steps
    10
    """
    length = {key: settings.get(key) for key in ("steps", "epochs")}  # one of them is there
    return _filled(DEFAULT, {**settings, **length})  # type: ignore[no-any-return]


def _filled(default: Any, settings: Mapping[str, Any]) -> Any:
    known = {field.name for field in fields(default)}
    changes: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in known:
            raise ValueError(f"there is no setting {key!r} in {type(default).__name__}")
        inner = getattr(default, key)
        if is_dataclass(inner):
            value = _filled(inner, value)
        elif isinstance(value, list):
            value = tuple(value)
        changes[key] = value
    return replace(default, **changes)
