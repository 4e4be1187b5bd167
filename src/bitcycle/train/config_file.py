"""Run configurations as YAML files, plain data and command-line options.

`read_config` reads a file, `override` applies options such as `--optimizer.lr 0.05`, `to_yaml`
writes the whole configuration. A wrong key, type or value raises a ValueError that names it.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import functools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

from bitcycle.extras import require
from bitcycle.train.config import RunConfig

MAX_BYTES = 2**20
_PURPOSE = "run configurations"
_FREE = ("model.options", "precision.quantizer_options")  # keys with mappings of any content
_LOW = "--precision.forward.low"
_RANGE = re.compile(r"(?P<head>[^:@,()]+:\s*)(?:[0-9]+|auto)(?=\s*-)", re.IGNORECASE)


def read_config(path: str | Path) -> RunConfig:
    """Read a configuration from a YAML file; missing keys take their defaults."""
    path = Path(path)
    settings = read_yaml(path, purpose=_PURPOSE)
    try:
        return from_dict(settings, source=str(path))
    except ValueError as error:  # raised by a rule that does not know the file
        message = str(error)
        raise ValueError(message if str(path) in message else f"{path}: {message}") from None


def from_dict(settings: Mapping[str, Any], *, source: str = "configuration") -> RunConfig:
    """Build a configuration from plain data; a wrong key or type is an error that names it."""
    if not isinstance(settings, Mapping):
        raise ValueError(f"{source} must be a mapping of settings, got {type(settings).__name__}")
    return _build(None, [], settings, source)


def override(base: RunConfig, arguments: Sequence[str]) -> RunConfig:
    """Apply command-line options such as `--optimizer.lr 0.05 --seed 3` to a configuration.

    `--precision.forward.low auto` (or a number) changes the lower end of the forward schedule.
    """
    return _build(base, _with_low(base, list(arguments)), None)


def _with_low(base: RunConfig, arguments: list[str]) -> list[str]:
    """Replace `--precision.forward.low` by the whole forward schedule with that lower end."""
    forward: object = base.precision.forward
    kept: list[str] = []
    words = iter(arguments)
    low: str | None = None
    for word in words:
        key, has_value, value = word.partition("=")
        if key not in (_LOW, "--precision.forward"):
            kept.append(word)
            continue
        value = value if has_value else next(words, "")
        if key == _LOW:
            low = value
        else:
            forward = value
            kept += [key, value]
    if low is None:
        return kept
    text, number = _RANGE.subn(lambda found: found["head"] + low, str(forward))
    if isinstance(forward, dict) or number != 1:
        raise ValueError(
            f"option {_LOW!r} changes the lower end of a schedule with one range, such as "
            f"CR:3-8:32; forward is {forward}: set the whole --precision.forward"
        )
    return [*kept, "--precision.forward", text]


def to_dict(config: RunConfig) -> dict[str, Any]:
    """A configuration as plain data for YAML and JSON; `from_dict` reads it back."""
    plain: dict[str, Any] = _plain(dataclasses.asdict(config))
    return plain


def to_yaml(config: RunConfig) -> str:
    """The complete configuration as YAML; `read_config` reads it back."""
    yaml = require("yaml", extra="train", purpose=_PURPOSE)
    text: str = yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)
    return text


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def make_parser(base: RunConfig | None = None) -> Any:
    """A jsonargparse parser with an option per key; the defaults come from `base`."""
    parser = require("jsonargparse", extra="train", purpose=_PURPOSE).ArgumentParser(
        exit_on_error=False, add_help=False
    )
    parser.add_class_arguments(RunConfig)
    if base is not None:
        parser.set_defaults(to_dict(base))
    return parser


def _build(
    base: RunConfig | None,
    arguments: Sequence[str],
    settings: Mapping[str, Any] | None,
    source: str = "command line",
) -> RunConfig:
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
    except (argparse.ArgumentError, TypeError, KeyError) as error:
        raise ValueError(f"{source}: {_readable(error)}") from None
    return RunConfig(**vars(instantiated))


def _readable(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", " ".join(lines))  # a type's plain name
    return text.removeprefix("Parser key ")


def check_overrides(arguments: Sequence[str]) -> None:
    """Raise ValueError for an unknown option, with the nearest known one."""
    for argument in arguments:
        if argument.startswith("--") and argument.partition("=")[0] != _LOW:
            _check_key(argument[2:].partition("=")[0].removesuffix("+"), f"option {argument!r}")


def _check_keys(settings: Mapping[str, Any], source: str, prefix: str = "") -> None:
    groups = {name.rpartition(".")[0] for name in option_names()}
    for name, value in settings.items():
        key = f"{prefix}{name}"
        if key in groups and isinstance(value, Mapping):
            _check_keys(value, source, f"{key}.")
        elif key not in _FREE:
            _check_key(key, f"key {key!r} in {source}")


def _check_key(key: str, what: str) -> None:
    names = option_names()
    groups = {name.rpartition(".")[0] for name in names}
    is_free = any(key.startswith(f"{name}.") for name in _FREE)
    if key in names or key in groups or is_free:
        return
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else f"; keys: {', '.join(names)}"
    raise ValueError(f"unknown {what}{hint}")


def _check_null(settings: Mapping[str, Any], source: str) -> None:
    """Raise for a null where a value must be; the parser accepts one anywhere."""
    for key, kind in _types_by_key().items():
        value: Any = settings
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is None and type(None) not in get_args(kind):
            raise ValueError(f"{source}: {key} is null; give a value, or leave the key out")


@functools.cache
def option_names() -> tuple[str, ...]:
    """Every dotted key of a configuration: name, model.name, model.options, ..."""
    return tuple(_types_by_key())


@functools.cache
def _types_by_key(kind: type = RunConfig, prefix: str = "") -> dict[str, Any]:
    """The annotation of every dotted key."""
    found: dict[str, Any] = {}
    for name, hint in get_type_hints(kind).items():
        if dataclasses.is_dataclass(hint):
            assert isinstance(hint, type)
            found |= _types_by_key(hint, f"{prefix}{name}.")
        else:
            found[prefix + name] = hint
    return found


def read_yaml(path: Path, *, purpose: str) -> Any:
    """The plain data of a YAML file. Raises a ValueError that names the file."""
    yaml = require("yaml", extra="train", purpose=purpose)
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise ValueError(f"{path} has {size:,} bytes; at most {MAX_BYTES:,}")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        json.dumps(content, default=str, skipkeys=True)  # raises for a value that contains itself
        return content
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text file: {error}") from None
    except RecursionError:
        raise ValueError(f"{path} is not valid YAML: it is nested too deeply") from None
    # a number, date or tag whose text does not fit it fails with whatever Python raises
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} is not valid YAML: {reason}") from None
