"""Find a study by name, or read it from a YAML file.

A file holds recipes or settings to start from, methods as changes to them, an optional grid, and
seeds; `docs/studies.md` describes the format. The studies of the package are such files, in
`catalogue`.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any, get_args

from bitcycle.registry import unknown_name
from bitcycle_lab.published import Published
from bitcycle_lab.recipes import recipe_names
from bitcycle_lab.recipes.base import Scale, change, find_base
from bitcycle_lab.recipes.cells import TABLES, Cell, cells_of
from bitcycle_lab.recipes.notation import FLOAT32, Notation
from bitcycle_lab.recipes.recipe import find_recipe, settings_with_bits
from bitcycle_lab.study.critical_periods import Periods
from bitcycle_lab.study.study import Kind, Method, Study
from bitcycle_lab.train.config import RunConfig, unchecked_names
from bitcycle_lab.train.config_file import build_config, from_dict, read_own_yaml, read_yaml
from bitcycle_lab.train.config_id import config_id

HEAD = ("name", "description", "baseline", "margin", "seeds", "notes", "kind", "scale", "published")
SECTION = ("base", "group", "methods", "grid", "cycles", "settings")
FORMS = {  # what a file may hold besides its head
    "table": ("table", "network", "base", "settings"),
    "periods": ("periods", "settings"),
    "groups": ("groups", *SECTION),
}
DEFAULT_SEEDS = 3
MOST = 5_000  # methods x points of the grid, and seeds: a larger number is a typing error

Build = Callable[[Mapping[str, Any], str], RunConfig]  # of plain settings; the text names them


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
        file = resources.files(__package__).joinpath("catalogue", f"{name_or_path}.yaml")
        settings = {"name": name_or_path, **read_own_yaml(file)}
        with unchecked_names():  # a test checks them
            return _make_study(settings, lambda plain, _: build_config(plain))
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


def read_study_file(path: str | Path) -> Study:
    """Read a study from a YAML file; errors name the file. Its name is the file's, by default."""
    settings = read_yaml(Path(path), purpose="study files")
    if isinstance(settings, Mapping):
        settings = {"name": Path(path).stem, **settings}
    return study_from_dict(settings, source=str(path))


def study_from_dict(settings: Any, *, source: str = "study") -> Study:
    """Build a study from the contents of a file. source: named in errors."""
    try:
        return _make_study(
            _mapping("a study", settings), lambda plain, what: from_dict(plain, source=what)
        )
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{source}: {error}") from None


def _make_study(settings: Mapping[str, Any], build: Build) -> Study:
    form = next((form for form in FORMS if form in settings), None)
    _check_keys(settings, (*HEAD, *(FORMS[form] if form else (*SECTION, *FORMS))))
    _check_not_set(_settings(settings), "settings")
    notes = _texts("notes", settings.get("notes") or [])
    if form == "table":
        cells = list(_cells(settings))
        methods = _of_table(cells, _settings(settings), build)
        notes += tuple(dict.fromkeys(note for cell in cells for note in cell.notes))
    elif form == "periods":
        methods = _of_periods(settings, build)
    elif form == "groups":
        methods = _of_groups(settings, build)
    else:
        methods = _of_section(settings, build)
    where = _texts("published", settings.get("published") or [])
    for table in where:
        if table not in TABLES:
            raise unknown_name("published table", table, TABLES)
    return Study(
        name=_text("name", settings.get("name")),
        description=_text("description", settings.get("description", "")),
        methods=tuple(_with_published(method, where) for method in methods),
        seeds=_seeds(settings.get("seeds", DEFAULT_SEEDS)),
        baseline=_optional_text("baseline", settings.get("baseline")),
        kind=_choice("kind", settings.get("kind", "comparison"), get_args(Kind)),
        scale=_choice("scale", settings.get("scale", "full"), get_args(Scale)),
        notes=notes,
        margin=_margin(settings.get("margin")),
    )


def _with_published(method: Method, where: tuple[str, ...]) -> Method:
    """The method with what these tables print of it, if it is a recipe."""
    name = method.config.name
    if not where or name not in recipe_names():
        return method
    entry = find_recipe(name)
    if config_id(entry.build()) != config_id(method.config):
        return method  # it has other settings than the published run
    published: tuple[Published, ...] = tuple(p for p in entry.published if p.where in where)
    return replace(method, published=published)


# -- the forms of a file --------------------------------------------------------------------------


def _cells(settings: Mapping[str, Any]) -> Iterator[Cell]:
    """The cells of a published table, perhaps of one network, perhaps on another base recipe."""
    where = _text("table", settings["table"])
    if where not in TABLES:
        raise unknown_name("table", where, TABLES)
    network, on = (_optional_text(key, settings.get(key)) for key in ("network", "base"))
    networks = {cell.base.name for cell in cells_of(where)}
    if network is not None and network not in networks:
        raise unknown_name(f"network of {where}", network, sorted(networks))
    yield from cells_of(where, network=network, on=on)


def _of_table(cells: Iterable[Cell], settings: Mapping[str, Any], build: Build) -> Iterator[Method]:
    for cell in cells:
        plain = {**change(cell.config, settings), "name": cell.name}
        is_published = bool(cell.published) and not settings
        yield Method(
            label=cell.label,
            config=build(plain, f"method {cell.label!r}"),
            group=cell.group,
            place=cell.place if is_published else None,
            published=cell.published if is_published else (),
        )


def _of_periods(settings: Mapping[str, Any], build: Build) -> Iterator[Method]:
    for number, entry in enumerate(_list("periods", settings["periods"]), start=1):
        what = f"entry {number} of periods"
        with _naming(what):
            periods = Periods.from_dict(_mapping("it", entry))
            base = find_base(periods.base)
            plain = settings_with_bits(change(base.config, _settings(settings)), "static 8/8")
            methods = list(periods.methods(build(plain, what)))
        yield from methods


def _of_groups(settings: Mapping[str, Any], build: Build) -> Iterator[Method]:
    """Parts of a file, which have the keys of the file where they have none of their own."""
    shared = {key: settings[key] for key in SECTION if key in settings}
    for number, entry in enumerate(_list("groups", settings["groups"]), start=1):
        with _naming(f"group {number}"):
            group = _mapping("it", entry)
            _check_keys(group, SECTION)
            _check_not_set(_settings(group), "settings")
            both = change(_settings(shared), _settings(group))
            methods = list(_of_section({**shared, **group, "settings": both}, build))
        yield from methods


def _of_section(settings: Mapping[str, Any], build: Build) -> Iterator[Method]:
    """Every method on every base at every point of the grid; each base and point is a group."""
    if not settings.get("methods") and not settings.get("grid"):
        raise ValueError("a study needs methods (label -> changes) or a grid (key -> values)")
    title = _optional_text("group", settings.get("group"))
    bases = settings.get("base", {})
    if not isinstance(bases, list):
        yield from _of_base(settings, bases, title or "", build)
        return
    found = [find_base(_text("an entry of base", name)) for name in _list("base", bases)]
    shown = Counter(base.shown for base in found)
    for base in found:
        where = base.shown if shown[base.shown] == 1 else (base.name,)
        yield from _of_base(settings, base.name, ", ".join([*where, *filter(None, [title])]), build)


def _of_base(settings: Mapping[str, Any], base: Any, title: str, build: Build) -> Iterator[Method]:
    points = list(_points(_mapping("grid", settings.get("grid") or {})))
    shared, cycles = _settings(settings), _cycles(settings.get("cycles"))
    if not settings.get("methods"):
        for label, point in points:
            config = _config(label, base, shared, point, cycles, build)
            yield Method(label=label, config=config, group=title)
        return
    methods = _methods(settings["methods"])
    if len(points) * len(methods) > MOST:
        raise ValueError(
            f"{len(methods):,} methods at {len(points):,} points of the grid; at most {MOST:,}"
        )
    for (point_text, point), (label, entry) in itertools.product(points, methods.items()):
        own = _entry(label, entry)
        own_base = own.pop("base", base)
        num_seeds = _whole_number(f"num_seeds of method {label!r}", own.pop("num_seeds", None))
        group = _optional_text(f"group of method {label!r}", own.pop("group", title))
        yield Method(
            label=label,
            config=_config(label, own_base, shared, {**own, **point}, cycles, build),
            group=", ".join(part for part in (group, point_text) if part),
            num_seeds=num_seeds,
        )


def _methods(value: Any) -> dict[str, Any]:
    """The methods by label; a list has labels that are methods in the papers' notation."""
    if isinstance(value, list):
        texts = [_text("an entry of methods", label) for label in value]
        twice = [text for text, number in Counter(texts).items() if number > 1]
        if twice:
            raise ValueError(f"methods has {twice[0]!r} twice")
        return dict(zip(texts, texts, strict=True))
    return {_text("a label of methods", k): v for k, v in _mapping("methods", value).items()}


def _entry(label: str, entry: Any) -> dict[str, Any]:
    """What a method says: changes, a method in the papers' notation, or the name of a recipe."""
    if isinstance(entry, str) and (entry == FLOAT32 or "/" in entry):
        return {"bits": entry}
    if isinstance(entry, str):
        if entry not in recipe_names():
            what = f"method {label!r}: recipe, or method with bits such as 'CPT 3-8/8',"
            raise unknown_name(what, entry, recipe_names())
        return {"base": entry}
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


# -- one configuration ----------------------------------------------------------------------------


def _config(
    label: str,
    base: Any,
    shared: Mapping[str, Any],
    own: Mapping[str, Any],
    cycles: int | None,
    build: Build,
) -> RunConfig:
    """A base with the shared changes and its own; bits come before changes of the precision.

    cycles: of the file, for methods in the papers' notation.
    """
    what = f"method {label!r}"
    own = dict(own)
    bits, own_cycles = own.pop("bits", None), own.pop("cycles", None)
    with _naming(what):
        _check_not_set(own, "it")
        if bits is None and own_cycles is not None:
            raise ValueError(f"cycles ({own_cycles!r}) are those of bits, such as 'CPT 3-8/8'")
        if isinstance(base, str):
            settings = find_recipe(base).settings
        else:
            settings = change({}, _mapping("base (a recipe's name, or settings)", base))
            _check_not_set(settings, "base")
        settings = change(settings, shared)
        later = {key: own.pop(key) for key in list(own) if str(key).startswith("precision")}
        settings = change(settings, own)
        if bits is not None:
            settings = _put_bits(settings, _text("bits", bits), base, _cycles(own_cycles), cycles)
        return build(change(settings, later), what)


def _put_bits(
    settings: dict[str, Any], bits: str, base: Any, own_cycles: int | None, cycles: int | None
) -> dict[str, Any]:
    usual = None
    if isinstance(base, str):
        usual = find_base(base).cycles  # other recipes have bits, and settings for them
    elif {"forward", "backward", "quantizer"} & set(settings.get("precision") or {}):
        raise ValueError("base has bits; give bits in one place")
    if own_cycles is None and Notation.parse(bits).is_cycled:
        own_cycles = cycles
    return settings_with_bits(settings, bits, cycles=own_cycles, usual_cycles=usual)


class _naming:
    """Errors raised inside begin with who raised them."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, ValueError) and self.what not in str(error):
            raise ValueError(f"{self.what}: {error}") from None


def _check_not_set(settings: Mapping[str, Any], what: str) -> None:
    for key, way_out in (
        ("seed", "list them under seeds"),
        ("output", "it is an option, --output"),
    ):
        if key in settings:
            raise ValueError(f"{what} sets {key}: a study has it for all its runs, {way_out}")


# -- values ---------------------------------------------------------------------------------------


def _check_keys(settings: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    for key in settings:
        if key not in keys:
            raise unknown_name("key", key, keys)


def _settings(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    return _mapping("settings", settings.get("settings") or {})


def _seeds(value: Any) -> tuple[int, ...]:
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MOST:
        return tuple(range(value))
    if isinstance(value, list) and value and all(type(seed) is int for seed in value):
        return tuple(value)
    if isinstance(value, int) and value > MOST:
        raise ValueError(f"seeds ({value}) must be at most {MOST:,}")
    raise ValueError(f"seeds ({value!r}) must be a number of seeds or a list such as [0, 1, 2]")


def _cycles(value: Any) -> int | None:
    cycles = _whole_number("cycles", value)
    if cycles is not None and cycles < 1:
        raise ValueError(f"cycles ({cycles}) must be at least 1")
    return cycles


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


def _texts(what: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, list):
        return tuple(_text(f"an entry of {what}", text) for text in value)
    return (_text(what, value),)


def _list(what: str, value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"{what} must be a list of at least one, got {value!r}")
    return value


def _mapping(what: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{what} must be a mapping, got {value!r}")
    return value


def _text(what: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    is_scalar = value is not None and not isinstance(value, list | Mapping)
    hint = "; put quotes around it" if is_scalar else ""
    raise ValueError(f"{what} must be text, got {value!r}{hint}")


def _optional_text(what: str, value: Any) -> str | None:
    return None if value is None else _text(what, value)
