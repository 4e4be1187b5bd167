"""Find a study by name, or read it from a YAML file.

A file holds a base configuration, methods as changes to it, an optional grid, and seeds;
`docs/studies.md` describes the format.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bitcycle.registry import unknown_name
from bitcycle_lab.recipes import list_recipes, recipe
from bitcycle_lab.study.study import STUDIES, Method, Study
from bitcycle_lab.train.config import RunConfig
from bitcycle_lab.train.config_file import from_dict, read_yaml, to_dict

KEYS = ("name", "description", "baseline", "margin", "seeds", "base", "group", "methods", "grid",
        "notes")  # fmt: skip
DEFAULT_SEEDS = 3
MOST = 5_000  # methods x points of the grid, and seeds: a larger number is a typing error


def find_study(name_or_path: str) -> Study:
    """A study of the package by its name, or the study in a YAML file.

    >>> find_study("demmo")
    Traceback (most recent call last):
    ...
    ValueError: unknown study 'demmo'; did you mean 'demo'? ...
    """
    path = Path(name_or_path).expanduser()
    if path.is_file():
        return read_study_file(path)
    if path.suffix in (".yaml", ".yml"):
        raise ValueError(f"there is no file {name_or_path}; give a YAML file or a study's name")
    if name_or_path not in STUDIES and any(r.name == name_or_path for r in list_recipes()):
        raise ValueError(
            f"{name_or_path} is a recipe, not a study; train it with bitcycle train {name_or_path}"
        )
    return STUDIES[name_or_path]()


def read_study_file(path: str | Path) -> Study:
    """Read a study from a YAML file; errors name the file."""
    return study_from_dict(read_yaml(Path(path), purpose="study files"), source=str(path))


def study_from_dict(settings: Any, *, source: str = "study") -> Study:
    """Build a study from the contents of a file. source: named in errors."""
    try:
        return _build(_mapping("a study", settings))
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None


def _build(settings: Mapping[str, Any]) -> Study:
    for key in settings:
        if key not in KEYS:
            raise unknown_name("key", key, KEYS)
    if not isinstance(settings.get("name"), str):
        raise ValueError("a study needs a name (text)")
    if not settings.get("methods") and not settings.get("grid"):
        raise ValueError("a study needs methods (label -> changes) or a grid (key -> values)")
    return Study(
        name=settings["name"],
        description=_text("description", settings.get("description", "")),
        methods=tuple(_methods(settings)),
        seeds=_seeds(settings.get("seeds", DEFAULT_SEEDS)),
        baseline=_optional_text("baseline", settings.get("baseline")),
        notes=_notes(settings.get("notes") or []),
        margin=_margin(settings.get("margin")),
    )


def _methods(settings: Mapping[str, Any]) -> Iterator[Method]:
    """Every method at every point of the grid, one group per point; the points alone otherwise."""
    title = _optional_text("group", settings.get("group")) or ""
    base = settings.get("base", {})
    points = list(_points(_mapping("grid", settings.get("grid") or {})))
    if not settings.get("methods"):
        for label, changes in points:
            yield Method(label=label, config=_config(label, base, changes), group=title)
        return
    methods = _mapping("methods", settings["methods"])
    if len(points) * len(methods) > MOST:
        raise ValueError(
            f"{len(methods):,} methods at {len(points):,} points of the grid; at most {MOST:,}"
        )
    for (point, changes), (label, entry) in itertools.product(points, methods.items()):
        own_changes = {"base": entry} if isinstance(entry, str) else entry or {}
        own_changes = dict(_mapping(f"method {label!r}", own_changes))
        own_base, num_seeds = own_changes.pop("base", base), own_changes.pop("num_seeds", None)
        own_group = _optional_text(f"group of method {label!r}", own_changes.pop("group", title))
        yield Method(
            label=str(label),
            config=_config(str(label), own_base, {**own_changes, **changes}),
            group=", ".join(part for part in (own_group, point) if part),
            num_seeds=_num_seeds(str(label), num_seeds),
        )


def _points(grid: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(text, changes) of every combination of values; without a grid, one empty combination."""
    for key, values in grid.items():
        _text("a key of grid", key)
        if not isinstance(values, list) or not values:
            raise ValueError(f"grid.{key} must be a list of values, such as [0.05, 0.1]")
    num_points = math.prod(map(len, grid.values()))
    if num_points > MOST:
        raise ValueError(f"the grid has {num_points:,} points; at most {MOST:,}")
    last_parts = [key.rpartition(".")[2] for key in grid]
    names = [last if last_parts.count(last) == 1 else key
             for key, last in zip(grid, last_parts, strict=True)]  # fmt: skip
    for values in itertools.product(*grid.values()):
        shown = [v if isinstance(v, str) else json.dumps(v, default=str) for v in values]
        text = ", ".join(f"{name} {value}" for name, value in zip(names, shown, strict=True))
        yield text, dict(zip(grid, values, strict=True))


def _config(label: str, base: Any, changes: Mapping[str, Any]) -> RunConfig:
    """The base, which is a recipe's name or settings, with the changes applied."""
    what = f"method {label!r}"
    if isinstance(base, str):
        config = recipe(base)
        if not changes:
            return config
        settings = to_dict(config)
    else:
        settings = _merge({}, _mapping("base", base))
    settings = _merge(settings, changes)
    for key in ("seed", "output"):
        if key in changes or (key in settings and not isinstance(base, str)):
            way_out = "list them under seeds" if key == "seed" else "it is an option, --output"
            raise ValueError(f"{what} sets {key}: a study has it for all its runs, {way_out}")
    try:
        return from_dict(settings, source=what)
    except ValueError as error:  # raised by a rule that does not know the method
        message = str(error)
        raise ValueError(message if what in message else f"{what}: {message}") from None


def _merge(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`settings` with nested or dotted changes: {"lr.gamma": 0.1} is {"lr": {"gamma": 0.1}}."""
    merged = dict(settings)
    for key, value in changes.items():
        if isinstance(value, Mapping) and "." not in str(key):  # deeper ones are values themselves
            for name, part in value.items():
                _put(merged, f"{key}.{name}", part)
        else:
            _put(merged, str(key), value)
    return merged


def _put(settings: dict[str, Any], key: str, value: Any) -> None:
    *outer, last = key.split(".")
    for part in outer:
        inner = settings.get(part)
        settings[part] = dict(inner) if isinstance(inner, Mapping) else {}
        settings = settings[part]
    settings[last] = value


def _seeds(value: Any) -> tuple[int, ...]:
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MOST:
        return tuple(range(value))
    if isinstance(value, list) and value and all(type(seed) is int for seed in value):
        return tuple(value)
    if isinstance(value, int) and value > MOST:
        raise ValueError(f"seeds ({value}) must be at most {MOST:,}")
    raise ValueError(f"seeds ({value!r}) must be a number of seeds or a list such as [0, 1, 2]")


def _num_seeds(label: str, value: Any) -> int | None:
    if value is None or type(value) is int:
        return value
    raise ValueError(f"num_seeds ({value!r}) of method {label!r} must be a whole number")


def _margin(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"margin ({value!r}) must be a number in units of the metric, such as 0.5")
    return float(value)


def _notes(value: Any) -> tuple[str, ...]:
    if isinstance(value, list):
        return tuple(_text("a note", note) for note in value)
    return (_text("notes", value),)


def _mapping(what: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{what} must be a mapping, got {value!r}")
    return value


def _text(what: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{what} must be text, got {value!r}; put quotes around it")
    return value


def _optional_text(what: str, value: Any) -> str | None:
    return None if value is None else _text(what, value)
