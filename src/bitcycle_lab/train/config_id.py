"""`config_id`: a hash of the settings that decide the result of a run.

Runs with the same id and different seeds are repetitions of one experiment.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from bitcycle.precision import ROLES
from bitcycle_lab.train.config import RunConfig, unchecked_names
from bitcycle_lab.train.config_file import to_dict

IGNORED_SETTINGS = (
    "name",
    "seed",
    "output",
    "tracking",
    "checkpoint",
    "data.root",
    "data.cache_dir",
)
PRECISION_KEYWORDS = ("forward", "backward", *ROLES)
LENGTH = 10  # hex digits: a million configurations collide with probability 0.4


def config_id(config: RunConfig) -> str:
    """A hash that is equal for configurations that train the same.

    Seed, name and paths are ignored; `model.path` counts by its last part. Settings at their
    default are ignored too, so a setting that is added later changes no id.

    >>> from dataclasses import replace
    >>> one = RunConfig(steps=10)
    >>> config_id(one) == config_id(replace(one, output="elsewhere", seed=3))
    True
    >>> config_id(one) == config_id(replace(one, steps=11))
    False
    """
    settings = drop_defaults(_normalized(config), _defaults())
    text = json.dumps(settings, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:LENGTH]


@functools.cache
def _defaults() -> dict[str, Any]:
    """The defaults that ids leave out."""
    with unchecked_names():  # the names of the defaults exist; looking them up imports torch
        default = RunConfig(steps=1)
        settings = _normalized(default)
    del settings["steps"]
    settings["range_test"] = to_dict(default)["range_test"]
    return settings


def drop_defaults(settings: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """The settings that differ from `defaults`, which has these settings or more."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        default = defaults.get(name)
        if isinstance(value, dict) and isinstance(default, dict):
            value = drop_defaults(value, default)
            default = {}
        is_default = name in defaults and json.dumps(value) == json.dumps(default)  # 1 is not 1.0
        if not is_default:
            found[name] = value
    return found


def _normalized(config: RunConfig) -> dict[str, Any]:
    settings = to_dict(config.with_backward())
    for name in IGNORED_SETTINGS:
        _change(settings, name, None)
    for name in _float_keys():
        _change(settings, name, _as_float)  # 1 and 1.0 are the same learning rate
    for keyword in PRECISION_KEYWORDS:
        _change(settings, f"precision.{keyword}", _as_text)  # 8 and "8" are one schedule
    settings["range_test"]["criterion"] = "paper" if config.range_test.is_paper else None
    if config.precision.auto_high is None:  # no range test
        del settings["range_test"]
    if settings["model"]["path"] is not None:
        settings["model"]["path"] = Path(settings["model"]["path"]).name
    return settings


def _change(settings: dict[str, Any], dotted: str, change: Callable[[Any], Any] | None) -> None:
    """Apply `change` to a dotted setting; None removes the setting."""
    *folders, last = dotted.split(".")
    for folder in folders:
        settings = settings[folder]
    value = settings.pop(last)
    if change is not None:
        settings[last] = change(value)


@functools.cache
def _float_keys() -> tuple[str, ...]:
    """Settings that are floats; a time (a step or a fraction) can be an int."""
    return tuple(
        name
        for name, kind in _kinds(RunConfig, "")
        if kind in (float, float | None) and not name.startswith(IGNORED_SETTINGS)
    )


def _kinds(kind: type, prefix: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, hint in get_type_hints(kind).items():
        inner = is_dataclass(hint) and isinstance(hint, type)
        found += _kinds(hint, f"{prefix}{name}.") if inner else [(prefix + name, hint)]
    return found


def _as_float(value: Any) -> Any:
    return None if value is None else float(value)


def _as_text(schedule: Any) -> Any:
    if isinstance(schedule, dict):
        return {pattern: _as_text(inner) for pattern, inner in schedule.items()}
    return "fp32" if schedule is None else str(schedule)
