"""Base recipes: one configuration per network and dataset, read from the YAML files of this folder.

A file has settings that all its recipes share (`shared`), and `recipes` by name; its other keys are
defaults of its recipes. A recipe has

    config     its settings, nested or dotted; missing ones have their defaults
    cycles     the number of cycles that its paper, or its length, calls for
    scale      small: minutes on two cores (default: full)
    runs       methods in the papers' notation, each a recipe of its own
    variants   name -> changes, each a recipe of its own; `bits` is a method in that notation
    suffix     of the names of `runs`
    cells      papers that it belongs to
    notes      what a user must know, such as a setting that no paper states

A base recipe trains in float32 until it is given bits.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Literal

from bitcycle.registry import unknown_name
from bitcycle_lab.published import display_name
from bitcycle_lab.train.config_file import read_own_yaml

Scale = Literal["full", "small"]
Settings = dict[str, Any]
DEFAULTS = object()  # in changes, in place of a group: its settings have their defaults


@dataclass(frozen=True, kw_only=True)
class Base:
    """A base recipe, as its file has it."""

    name: str
    config: Settings
    cycles: int
    scale: Scale = "full"
    runs: tuple[str, ...] = ()
    variants: Mapping[str, Settings] = field(default_factory=dict)
    suffix: str = ""
    cells: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def steps(self) -> int | None:
        """The length of the run; None where it is in epochs."""
        return self.config.get("steps")

    @property
    def shown(self) -> tuple[str, str]:
        """Network and data as papers write them.

        >>> find_base("cifar100-resnet74").shown
        ('ResNet-74', 'CIFAR-100')
        """
        return display_name(self.config["model"]["name"]), display_name(self.config["data"]["name"])


def find_base(name: str) -> Base:
    """The base recipe of that name."""
    bases = read_bases()
    if name not in bases:
        raise unknown_name("base recipe", name, bases)
    return bases[name]


@functools.cache
def read_bases() -> dict[str, Base]:
    """Every base recipe by name."""
    found: dict[str, Base] = {}
    for file in sorted(resources.files(__package__).iterdir(), key=lambda file: file.name):
        if not file.name.endswith(".yaml"):
            continue
        defaults = read_own_yaml(file)
        shared, recipes = defaults.pop("shared", {}), defaults.pop("recipes")
        for name, entry in recipes.items():
            if name in found:
                raise ValueError(f"recipe {name!r} of {file.name} is defined twice")
            options = {**defaults, **entry, "name": name}
            options["config"] = change({**shared, "name": name}, options["config"])
            for key in ("runs", "cells", "notes"):
                options[key] = tuple(options.get(key, ()))
            found[name] = Base(**options)
    return found


def change(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> Settings:
    """A copy of the settings with nested or dotted changes.

    >>> change({"lr": {"gamma": 0.1}}, {"lr.policy": "cosine", "eval": {"every": 0}})
    {'lr': {'gamma': 0.1, 'policy': 'cosine'}, 'eval': {'every': 0}}
    >>> change({"precision": {"skip": ["fc"]}, "steps": 9}, {"precision": DEFAULTS})
    {'steps': 9}
    """
    merged = dict(settings)
    for key, value in changes.items():
        if isinstance(value, Mapping) and "." not in str(key):  # deeper ones are values themselves
            for name, part in value.items():
                _put(merged, f"{key}.{name}", part)
        elif value is DEFAULTS:
            merged.pop(key, None)
        else:
            _put(merged, str(key), value)
    return merged


def _put(settings: Settings, key: str, value: Any) -> None:
    *outer, last = key.split(".")
    for part in outer:
        inner = settings.get(part, {})
        if not isinstance(inner, Mapping):
            raise ValueError(f"{key}: {part} is {inner!r}, not a group of settings")
        settings[part] = dict(inner)
        settings = settings[part]
    settings[last] = value
