"""YAML files that people write: plain data, or one error that names the file."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints

from bitcycle.extras import require
from bitcycle.train.config import RunConfig

MOST_BYTES = 2**20


def read_yaml(path: Path, *, purpose: str) -> Any:
    """The plain data of a file; nothing it names is executed."""
    yaml = require("yaml", extra="train", purpose=purpose)
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ValueError(f"{path} has {size:,} bytes; at most {MOST_BYTES:,}")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        _check_aliases(content, {})
        return content
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text file: {error}") from None
    except RecursionError:
        raise ValueError(f"{path} is not valid YAML: it is nested too deeply") from None
    # a number, date or tag whose text does not fit it fails with whatever Python raises
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} is not valid YAML: {reason}") from None


def _check_aliases(value: Any, is_open: dict[int, bool]) -> None:
    """Raise for a list or mapping that an alias puts inside itself."""
    if not isinstance(value, dict | list | tuple) or is_open.get(id(value)) is False:
        return
    if id(value) in is_open:
        raise ValueError("an alias stands inside the value that it repeats")
    is_open[id(value)] = True
    for inner in value.values() if isinstance(value, dict) else value:
        _check_aliases(inner, is_open)
    is_open[id(value)] = False  # checked; another alias may repeat it


_PURPOSE = "run configurations"


def _jsonargparse() -> ModuleType:
    return require("jsonargparse", extra="train", purpose=_PURPOSE)


@functools.cache
def option_names() -> tuple[str, ...]:
    """Every dotted key of a configuration: name, model.name, model.options, ..."""
    return tuple(_names_of(RunConfig, ""))


def _names_of(kind: type, prefix: str) -> Iterator[str]:
    hints = get_type_hints(kind)
    for entry in dataclasses.fields(kind):
        key = prefix + entry.name
        if dataclasses.is_dataclass(hints[entry.name]):
            yield from _names_of(hints[entry.name], f"{key}.")
        else:
            yield key


def make_parser(base: RunConfig | None = None) -> Any:
    """A jsonargparse parser with an option per key, whose defaults are `base`."""
    parser = _jsonargparse().ArgumentParser(exit_on_error=False, add_help=False)
    parser.add_class_arguments(RunConfig)
    if base is not None:
        parser.set_defaults(to_dict(base))
    return parser


def override(base: RunConfig, arguments: Sequence[str]) -> RunConfig:
    """`base` with command-line overrides such as `--optimizer.lr 0.05 --seed 3` applied.

    `--precision.forward.low auto` (or a number) changes the lower end of the forward schedule.
    """
    return _build(base, _with_low(base, list(arguments)), None)


_LOW = "--precision.forward.low"
_RANGE = re.compile(r"(?P<head>[^:@,()]+:\s*)(?:[0-9]+|auto)(?=\s*-)", re.IGNORECASE)


def _with_low(base: RunConfig, arguments: list[str]) -> list[str]:
    """The forward schedule with another lower end, where an override asks for that."""
    forward: object = base.precision.forward
    kept: list[str] = []
    words = iter(arguments)
    low: str | None = None
    for word in words:
        key, has_value, value = word.partition("=")
        if key not in (_LOW, "--precision.forward"):
            kept.append(word)
            continue
        given = value if has_value else next(words, "")
        if key == _LOW:
            low = given
        else:
            forward = given
            kept += [key, given]
    if low is None:
        return kept
    text, number = _RANGE.subn(lambda found: found["head"] + low, str(forward))
    if isinstance(forward, dict) or number != 1:
        raise ValueError(
            f"option {_LOW!r} changes the lower end of a schedule with one range, such as "
            f"CR:3-8:32; forward is {forward}: give all of --precision.forward"
        )
    return [*kept, "--precision.forward", text]


def from_dict(settings: Mapping[str, Any], *, source: str = "configuration") -> RunConfig:
    """A configuration from plain data; a wrong key or type is an error that names it."""
    if not isinstance(settings, Mapping):
        raise ValueError(f"{source} must be a mapping of settings, got {type(settings).__name__}")
    return _build(None, [], settings, source)


def _build(
    base: RunConfig | None,
    arguments: Sequence[str],
    settings: Mapping[str, Any] | None,
    source: str = "command line",
) -> RunConfig:
    errors = (_argument_error(), TypeError, KeyError)
    parser = make_parser(base)
    try:
        if settings is not None:
            _check_keys(settings, source)
            namespace = parser.parse_object(_plain(settings))
        else:
            check_overrides(arguments)
            namespace = parser.parse_args(list(arguments))
        _check_null(namespace.as_dict(), source)
        instantiated = parser.instantiate(namespace)
    except errors as error:
        raise ValueError(f"{source}: {_readable(error)}") from None
    return RunConfig(**vars(instantiated))


def _check_null(settings: Mapping[str, Any], source: str) -> None:
    """Raise for a null where a value must be; the parser takes one anywhere."""
    for key, may_be in _may_be_null(RunConfig, ""):
        value: Any = settings
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is None and not may_be:
            raise ValueError(f"{source}: {key} is null; give a value, or leave the key out")


@functools.cache
def _may_be_null(kind: type, prefix: str) -> tuple[tuple[str, bool], ...]:
    found: list[tuple[str, bool]] = []
    for entry in dataclasses.fields(kind):
        hint, key = get_type_hints(kind)[entry.name], prefix + entry.name
        if dataclasses.is_dataclass(hint):
            assert isinstance(hint, type)
            found += _may_be_null(hint, f"{key}.")
        else:
            found.append((key, type(None) in get_args(hint)))
    return tuple(found)


def _argument_error() -> type[Exception]:
    import argparse

    return argparse.ArgumentError


def _readable(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", " ".join(lines))  # a type's plain name
    return text.removeprefix("Parser key ")


def check_overrides(arguments: Sequence[str]) -> None:
    """Raise for an option that is no key of the configuration, with the nearest one."""
    for argument in arguments:
        if argument.startswith("--") and argument.partition("=")[0] != _LOW:
            _check_key(argument[2:].partition("=")[0].removesuffix("+"), f"option {argument!r}")


def _check_keys(settings: Mapping[str, Any], source: str, prefix: str = "") -> None:
    free = {"model.options", "precision.quantizer_options"}
    groups = {name.rpartition(".")[0] for name in option_names()}
    for name, value in settings.items():
        key = f"{prefix}{name}"
        if key in groups and isinstance(value, Mapping):
            _check_keys(value, source, f"{key}.")
        elif key not in free:
            _check_key(key, f"key {key!r} in {source}")


def _check_key(key: str, what: str) -> None:
    names = option_names()
    groups = {name.rpartition(".")[0] for name in names}
    is_free = any(key.startswith(f"{n}.") for n in ("model.options", "precision.quantizer_options"))
    if key in names or key in groups or is_free:
        return
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else f"; keys: {', '.join(names)}"
    raise ValueError(f"unknown {what}{hint}")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def to_dict(config: RunConfig) -> dict[str, Any]:
    """Plain data that YAML and JSON can hold and `from_dict` reads back."""
    plain: dict[str, Any] = _plain(dataclasses.asdict(config))
    return plain


def to_yaml(config: RunConfig) -> str:
    """The complete configuration; `read_config` gives an equal one back."""
    yaml = require("yaml", extra="train", purpose=_PURPOSE)
    text: str = yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)
    return text


def read_config(path: str | Path) -> RunConfig:
    """The configuration in a YAML file; keys left out take their defaults."""
    path = Path(path)
    settings = read_yaml(path, purpose=_PURPOSE)
    try:
        return from_dict(settings, source=str(path))
    except ValueError as error:  # a rule of the configuration itself does not know the file
        message = str(error)
        raise ValueError(message if str(path) in message else f"{path}: {message}") from None
