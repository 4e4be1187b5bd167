"""Find a study by name, or read it from a YAML file.

A file holds recipes or settings to start from, methods as changes to them, an optional grid, and
seeds; `docs/studies.md` describes the format. The studies of the package are such files, in
`catalogue`.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from bitcycle.registry import unknown_name
from bitcycle_lab.recipes import recipe_names
from bitcycle_lab.recipes.base import change, read_bases
from bitcycle_lab.recipes.cells import TABLES, cells_of
from bitcycle_lab.recipes.notation import FLOAT32, Notation
from bitcycle_lab.recipes.recipe import find_recipe
from bitcycle_lab.study.critical_periods import Periods
from bitcycle_lab.study.study import Method, Study
from bitcycle_lab.train.config import RunConfig, unchecked_names
from bitcycle_lab.train.config_file import build_config, from_dict, read_yaml

SECTION = ("base", "group", "methods", "grid", "cycles", "settings")  # of a file or of a group
KEYS = ("name", "description", "baseline", "margin", "seeds", "notes", *SECTION, "groups", "table",
        "network", "periods", "published", "kind", "scale")  # fmt: skip
KINDS = ("comparison", "suite", "critical-periods")
SCALES = ("full", "small")
DEFAULT_SEEDS = 3
MOST = 5_000  # methods x points of the grid, and seeds: a larger number is a typing error

Build = Callable[[Mapping[str, Any], str], RunConfig]  # plain settings, and who has them


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
    if name_or_path in study_names():
        with unchecked_names():  # a test checks those of the package
            return _read_shipped(name_or_path)
    if name_or_path in recipe_names():
        raise ValueError(
            f"{name_or_path} is a recipe, not a study; train it with bitcycle train {name_or_path}"
        )
    raise unknown_name("study", name_or_path, study_names())


def study_names() -> list[str]:
    """The studies that come with the package."""
    files = resources.files(__package__).joinpath("catalogue").iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def list_studies() -> list[dict[str, str]]:
    """The studies that come with the package, as rows of `bitcycle study ls`."""
    return [
        {
            "name": study.name,
            "scale": study.scale,
            "methods x seeds": f"{len(study.methods)} x {len(study.seeds)}",
            "runs": str(study.num_runs),
            "what": study.description,
        }
        for study in map(find_study, study_names())
    ]


def _read_shipped(name: str) -> Study:
    file = resources.files(__package__).joinpath("catalogue", f"{name}.yaml")
    with resources.as_file(file) as path:
        settings = read_yaml(path, purpose="studies")
    return _build({"name": name, **settings}, lambda plain, _: build_config(plain))


def read_study_file(path: str | Path) -> Study:
    """Read a study from a YAML file; errors name the file."""
    return study_from_dict(read_yaml(Path(path), purpose="study files"), source=str(path))


def study_from_dict(settings: Any, *, source: str = "study") -> Study:
    """Build a study from the contents of a file. source: named in errors."""
    try:
        return _build(
            _mapping("a study", settings), lambda plain, what: from_dict(plain, source=what)
        )
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None


def _build(settings: Mapping[str, Any], build: Build) -> Study:
    """build: makes a configuration of plain settings."""
    _check_keys(settings, KEYS)
    if not isinstance(settings.get("name"), str):
        raise ValueError("a study needs a name (text)")
    study = Study(
        name=settings["name"],
        description=_text("description", settings.get("description", "")),
        methods=tuple(_all_methods(settings, build)),
        seeds=_seeds(settings.get("seeds", DEFAULT_SEEDS)),
        baseline=_optional_text("baseline", settings.get("baseline")),
        kind=_choice("kind", settings.get("kind", KINDS[0]), KINDS),
        scale=_choice("scale", settings.get("scale", SCALES[0]), SCALES),
        notes=_notes(settings.get("notes") or []),
        margin=_margin(settings.get("margin")),
    )
    where = _notes(settings.get("published") or [])
    return replace(study, methods=tuple(_with_published(m, where) for m in study.methods))


def _with_published(method: Method, where: tuple[str, ...]) -> Method:
    """The method with what these tables and figures print of the recipe of its name."""
    if not where or method.config.name not in recipe_names():
        return method
    published = find_recipe(method.config.name).published
    return replace(method, published=tuple(p for p in published if p.where in where))


def _all_methods(settings: Mapping[str, Any], build: Build) -> Iterator[Method]:
    """Of a published table, of critical periods, of several groups, or of the file itself."""
    if "table" in settings:
        yield from _of_table(settings, build)
    elif "periods" in settings:
        for number, entry in enumerate(_list("periods", settings["periods"])):
            what = f"entry {number + 1} of periods"
            periods = Periods.from_dict(_mapping(what, entry), what)
            base = change(_recipe_settings(periods.base), _changes("settings", settings))
            normal = _with_bits(base, "static 8/8", periods.base)
            yield from periods.methods(build(normal, what))
    elif "groups" in settings:
        shared = {key: settings[key] for key in SECTION if key in settings}
        for number, entry in enumerate(_list("groups", settings["groups"])):
            group = _mapping(f"group {number + 1}", entry)
            _check_keys(group, SECTION)
            both = {**_changes("settings", shared), **_changes("settings", group)}
            yield from _of_section({**shared, **group, "settings": both}, build)
    else:
        yield from _of_section(settings, build)


def _of_table(settings: Mapping[str, Any], build: Build) -> Iterator[Method]:
    """The cells of a published table; on another base recipe they have no published values."""
    where = settings["table"]
    if where not in TABLES:
        raise unknown_name("table", where, TABLES)
    on = _optional_text("base", settings.get("base"))
    for cell in cells_of(where, network=settings.get("network"), on=on):
        plain = change(cell.base.config, {**cell.changes, **_changes("settings", settings)})
        yield Method(
            label=cell.label,
            config=build({**plain, "name": cell.name}, f"method {cell.label!r}"),
            group=cell.group,
            place=None if on else cell.place,
            published=cell.published,
        )


def _of_section(settings: Mapping[str, Any], build: Build) -> Iterator[Method]:
    """Every method on every base at every point of the grid; each base and point is a group."""
    if not settings.get("methods") and not settings.get("grid"):
        raise ValueError("a study needs methods (label -> changes) or a grid (key -> values)")
    title = _optional_text("group", settings.get("group"))
    bases = settings.get("base", {})
    if not isinstance(bases, list):
        yield from _of_base(settings, bases, title or "", build)
        return
    for name in bases:
        base = read_bases().get(_text("an entry of base", name))
        if base is None:
            raise unknown_name("base recipe", name, read_bases())
        where = ", ".join([*base.shown, *([title] if title else [])])
        yield from _of_base(settings, name, where, build)


def _of_base(settings: Mapping[str, Any], base: Any, title: str, build: Build) -> Iterator[Method]:
    points = list(_points(_mapping("grid", settings.get("grid") or {})))
    changes, cycles = _changes("settings", settings), settings.get("cycles")
    methods = settings.get("methods")
    if not methods:
        for label, point in points:
            config = _config(label, base, changes, point, build)
            yield Method(label=label, config=config, group=title)
        return
    if isinstance(methods, list):  # of labels in the papers' notation
        methods = {_text("an entry of methods", label): label for label in methods}
    methods = _mapping("methods", methods)
    if len(points) * len(methods) > MOST:
        raise ValueError(
            f"{len(methods):,} methods at {len(points):,} points of the grid; at most {MOST:,}"
        )
    for (point_text, point), (label, entry) in itertools.product(points, methods.items()):
        own = _entry(str(label), entry)
        own_base = own.pop("base", base)
        num_seeds = _whole_number(f"num_seeds of method {label!r}", own.pop("num_seeds", None))
        group = _optional_text(f"group of method {label!r}", own.pop("group", title))
        own_cycles = {"cycles": cycles} if cycles is not None and "bits" in own else {}
        yield Method(
            label=str(label),
            config=_config(str(label), own_base, changes, {**own_cycles, **own, **point}, build),
            group=", ".join(part for part in (group, point_text) if part),
            num_seeds=num_seeds,
        )


def _entry(label: str, entry: Any) -> dict[str, Any]:
    """What a method says: changes, a method in the papers' notation, or the name of a recipe."""
    if isinstance(entry, str):
        is_notation = entry == FLOAT32 or "/" in entry
        entry = {"bits": entry} if is_notation else {"base": entry}
    return dict(_mapping(f"method {label!r}", entry or {}))


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


def _config(
    label: str, base: Any, shared: Mapping[str, Any], own: Mapping[str, Any], build: Build
) -> RunConfig:
    """The base, a recipe's name or settings, with the shared changes, the bits, its own changes."""
    what = f"method {label!r}"
    own = dict(own)
    bits, cycles = own.pop("bits", None), own.pop("cycles", None)
    is_recipe = isinstance(base, str)
    settings = _recipe_settings(base) if is_recipe else change({}, _mapping("base", base))
    settings = change(settings, shared)
    for key in ("seed", "output"):
        if key in own or key in shared or (key in settings and not is_recipe):
            way_out = "list them under seeds" if key == "seed" else "it is an option, --output"
            raise ValueError(f"{what} sets {key}: a study has it for all its runs, {way_out}")
    try:
        if bits is not None:
            cycles = _whole_number("cycles", cycles)
            settings = _with_bits(settings, _text("bits", bits), base, cycles)
        return build(change(settings, own), what)
    except ValueError as error:  # raised by a rule that does not know the method
        message = str(error)
        raise ValueError(message if what in message else f"{what}: {message}") from None


def _recipe_settings(name: str) -> dict[str, Any]:
    return find_recipe(name).settings


def _with_bits(
    settings: Mapping[str, Any], bits: str, base: Any, cycles: int | None = None
) -> dict[str, Any]:
    """Settings with a method in the papers' notation; cycles: None for those of the base recipe."""
    notation = Notation.parse(bits)
    known = read_bases().get(base) if isinstance(base, str) else None
    usual = None if known is None else known.cycles
    if cycles is None and usual is None and "-" in f"{notation.forward}{notation.backward}":
        raise ValueError(
            f"{bits!r} needs a number of cycles: give cycles, or a base recipe as base"
        )
    changes = notation.settings(cycles=cycles or usual or 1, steps=settings.get("steps"))
    name = f"{settings.get('name', 'run')}-{notation.name}"
    if cycles not in (None, usual):
        name += f"-n{cycles}"
    return {**change(settings, changes), "name": name}


def _check_keys(settings: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    for key in settings:
        if key not in keys:
            raise unknown_name("key", key, keys)


def _changes(key: str, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    return _mapping(key, settings.get(key) or {})


def _seeds(value: Any) -> tuple[int, ...]:
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MOST:
        return tuple(range(value))
    if isinstance(value, list) and value and all(type(seed) is int for seed in value):
        return tuple(value)
    if isinstance(value, int) and value > MOST:
        raise ValueError(f"seeds ({value}) must be at most {MOST:,}")
    raise ValueError(f"seeds ({value!r}) must be a number of seeds or a list such as [0, 1, 2]")


def _whole_number(what: str, value: Any) -> int | None:
    if value is None or type(value) is int:
        return value
    raise ValueError(f"{what} ({value!r}) must be a whole number")


def _margin(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"margin ({value!r}) must be a number in units of the metric, such as 0.5")
    return float(value)


def _choice(key: str, value: Any, choices: tuple[str, ...]) -> Any:
    if value not in choices:
        raise unknown_name(key, value, choices)
    return value


def _notes(value: Any) -> tuple[str, ...]:
    if isinstance(value, list):
        return tuple(_text("a note", note) for note in value)
    return (_text("notes", value),)


def _list(what: str, value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"{what} must be a list, got {value!r}")
    return value


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
