"""Run configurations as YAML files, plain data and command-line options.

`read_config` reads a file, `override` applies options such as `--optimizer.lr 0.05`, `to_yaml`
writes the whole configuration. A wrong key, type or value raises a ValueError that names it.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import difflib
import functools
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

from bitcycle.extras import require
from bitcycle.files import FORM, check_form
from bitcycle.registry import LIKENESS
from bitcycle_lab.train.config import RunConfig

MAX_BYTES = 2**20
_PURPOSE = "run configurations"
_FREE = ("model.options", "precision.quantizer_options")  # keys with mappings of any content
_MOST_GUESSES = 5
_LOW = "--precision.forward.low"
_UNION = re.compile(
    r"(?P<key>.*): Does not validate against any of the Union subtypes "
    r"Subtypes: \[(?P<kinds>[^\[\]]*)\] .* Given value: (?P<value>.*)"
)
_LITERAL = re.compile(
    r"(?P<key>.*?): (?:Expected a |.*Subtypes: \[)typing\.Literal\[(?P<names>[^\[\]]*)\]"
    r"(?:\.|, NoneType\] .*) (?:Got|Given) value: (?P<value>.*)"
)
_RANGE = re.compile(r"(?P<head>[^:@,()]+:\s*)(?:[0-9]+|auto)(?=\s*-)", re.IGNORECASE)


def read_config(path: str | Path, *, default_form: int | None = FORM) -> RunConfig:
    """Read a configuration from a YAML file; missing keys take their defaults.

    default_form: the form of a file that does not say it; None: it must.
    """
    path = Path(path)
    settings = read_yaml(path, purpose=_PURPOSE)
    if isinstance(settings, Mapping):
        settings = {"form": default_form, **settings}
    try:
        return from_dict(settings, source=str(path))
    except ValueError as error:  # raised by a rule that does not know the file
        message = str(error)
        raise ValueError(message if str(path) in message else f"{path}: {message}") from None


def from_dict(settings: Mapping[str, Any], *, source: str = "configuration") -> RunConfig:
    """Build a configuration from plain data; a wrong key or type is an error that names it."""
    if not isinstance(settings, Mapping):
        raise ValueError(f"{source} must be a mapping of settings, got {type(settings).__name__}")
    settings = dict(settings)
    check_form(settings.pop("form", FORM), source)
    return _build(None, [], settings, source)


def build_config(settings: Mapping[str, Any]) -> RunConfig:
    """Build a configuration from data of this package, whose keys and types are right.

    It takes a hundredth of the time of `from_dict`; a test compares both for every recipe.
    """
    config: RunConfig = _fill(RunConfig, settings)
    return config


def _fill(kind: Any, settings: Mapping[str, Any]) -> Any:
    values: dict[str, Any] = {}
    for name, value in settings.items():
        hint = _hints(kind)[name]
        if dataclasses.is_dataclass(hint):
            value = _fill(hint, value)
        elif isinstance(value, dict):
            value = copy.deepcopy(value)  # a caller may change the options of a model
        values[name] = tuple(value) if isinstance(value, list) else value
    return kind(**values)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def override(base: RunConfig, arguments: Sequence[str]) -> RunConfig:
    """Apply command-line options such as `--optimizer.lr 0.05 --seed 3` to a configuration.

    `--precision.forward.low auto` (or a number) changes the lower end of the forward schedule.
    """
    return _build(base, _with_lists(_with_low(base, list(arguments))), None)


def _with_lists(arguments: list[str]) -> list[str]:
    """Write the values of keys that take a list as one: `--precision.skip fc` as `["fc"]`."""
    kinds = _types_by_key()
    found: list[str] = []
    words = iter(arguments)
    for word in words:
        option, has_value, value = word.partition("=")
        kind = kinds.get(option[2:]) if option.startswith("--") else None
        texts = _tuple_items(kind)
        if texts is None:
            found.append(word)
            continue
        value = (value if has_value else next(words, "--")).strip()
        if not has_value and value.startswith("--"):
            raise ValueError(f"option {option!r}: expected one argument")
        if value and value not in ("null", "None") and not _is_list(value):
            # a regular expression may have commas of its own
            parts = [value] if value.startswith("re:") else value.split(",")
            parts = [part.strip() for part in parts]
            value = json.dumps(parts) if texts is str else f"[{', '.join(parts)}]"
        found += [option, value]
    return found


def _is_list(text: str) -> bool:
    """Whether a text is a list or tuple, such as ["fc"]; the pattern [lf]* is none."""
    if text.startswith("("):
        return True
    yaml = require("yaml", extra="train", purpose=_PURPOSE)
    try:
        return text.startswith("[") and isinstance(yaml.safe_load(text), list)
    except yaml.YAMLError:
        return False


def _tuple_items(kind: Any) -> Any:
    """The type of a tuple's items, also of an optional tuple; None for other types."""
    for each in (kind, *get_args(kind)):
        if get_origin(each) is tuple:
            return get_args(each)[0]
    return None


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
            f"option {_LOW!r} needs a forward schedule with one range, such as CR:3-8:32, "
            f"got {forward}"
        )
    return [*kept, "--precision.forward", text]


def to_dict(config: RunConfig) -> dict[str, Any]:
    """A configuration as plain data for YAML and JSON; `from_dict` reads it back."""
    plain: dict[str, Any] = _plain(dataclasses.asdict(config))
    return plain


def to_yaml(config: RunConfig) -> str:
    """The form and the complete configuration as YAML; `read_config` reads it back."""
    yaml = require("yaml", extra="train", purpose=_PURPOSE)
    text: str = yaml.safe_dump(
        {"form": FORM, **to_dict(config)}, sort_keys=False, allow_unicode=True
    )
    return text


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def make_parser(base: RunConfig | None = None) -> Any:
    """A jsonargparse parser with an option per key; the defaults come from `base`."""
    if base is None:
        return _plain_parser()
    parser = _parser_with_defaults()
    parser.set_defaults(to_dict(base))  # every key, so none stays from an earlier base
    return parser


@functools.cache
def _plain_parser() -> Any:
    """Making a parser takes as long as parsing with it."""
    parser = require("jsonargparse", extra="train", purpose=_PURPOSE).ArgumentParser(
        exit_on_error=False, add_help=False
    )
    parser.add_class_arguments(RunConfig)
    return parser


@functools.cache
def _parser_with_defaults() -> Any:
    """A parser of its own: `set_defaults` changes it."""
    parser: Any = _plain_parser.__wrapped__()
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
            # missing keys get the defaults of RunConfig, without the parser's check of each
            namespace = parser.parse_object(_plain(settings), defaults=False)
        else:
            check_overrides(arguments)
            arguments = _with_files(arguments)
            _check_values(arguments)
            namespace = parser.parse_args(list(arguments))
        _check_null(namespace.as_dict(), source)
        instantiated = parser.instantiate(namespace)
    except (argparse.ArgumentError, TypeError, KeyError) as error:
        raise ValueError(f"{source}: {_readable(error)}") from None
    return RunConfig(**vars(instantiated))


def _with_files(arguments: Sequence[str]) -> list[str]:
    """Replace the file of a group, as in `--optimizer sgd.yaml`, by its content."""
    found: list[str] = []
    for word in arguments:
        option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        key = (option or (found[-1] if found else ""))[2:]
        if value and key in _groups() and os.path.isfile(value):
            content = read_yaml(Path(value), purpose=_PURPOSE)
            word = option + equals + json.dumps(content, default=str)
        found.append(word)
    return found


def _check_values(arguments: Sequence[str]) -> None:
    """Raise ValueError for values that `read_yaml` would refuse: jsonargparse reads YAML too."""
    yaml = require("yaml", extra="train", purpose=_PURPOSE)
    for word in arguments:
        value = word.partition("=")[2] if word.startswith("--") else word
        try:
            yaml.load(value, Loader=_strict_loader())
        except _strict_loader().Refused as error:
            raise ValueError(f"{value[:60]!r}: {error.problem}") from None
        except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            continue  # a plain text, or the parser says what is wrong with it


def _readable(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", " ".join(lines))  # a type's plain name
    text = text.removeprefix("Parser key ")
    if union := _UNION.fullmatch(text):
        kinds = ["null" if kind == "NoneType" else kind for kind in union["kinds"].split(", ")]
        return f"{union['key']}: expected {' or '.join(kinds)}, got {union['value']!r}"
    if literal := _LITERAL.fullmatch(text):
        names = literal["names"].replace("'", "")
        return f"{literal['key']}: expected one of {names}; got {literal['value']!r}"
    return text


def check_overrides(arguments: Sequence[str], also: Iterable[str] = ()) -> None:
    """Raise ValueError for an unknown option, with the nearest known one.

    also: options of the command, such as --quiet, that may have been meant.
    """
    also = list(also)
    for before, argument, following in zip(
        ["", *arguments], arguments, [*arguments[1:], ""], strict=False
    ):
        option, has_value, value = argument.partition("=")
        if option in also and before.startswith("--") and "=" not in before:
            raise ValueError(f"option {before!r} needs a value, got the option {option!r}")
        if not option.startswith("--") or option == _LOW:
            continue
        key = option[2:].removesuffix("+")
        value = value if has_value else following
        if key in _groups() and not value.startswith("{") and not os.path.isfile(value):
            _fail_group(key, f"option {option!r}", "--")
        near = difflib.get_close_matches(option, also, n=1, cutoff=0.8)
        if near and key not in option_names():
            raise ValueError(f"unknown option {option!r}; did you mean {near[0]!r}?")
        _check_key(key, f"option {option!r}", "--")


def _check_keys(settings: Mapping[str, Any], source: str, prefix: str = "") -> None:
    for name, value in settings.items():
        key = f"{prefix}{name}"
        if key not in _groups():
            if key not in _FREE:
                _check_key(key, f"key {key!r} in {source}")
        elif isinstance(value, Mapping):
            _check_keys(value, source, f"{key}.")
        else:
            _fail_group(key, f"key {key!r} in {source}")


def _check_key(key: str, what: str, dashes: str = "") -> None:
    """Raise for a key that is neither known nor in a mapping of any content."""
    names = option_names()
    is_free = any(key.startswith(f"{name}.") for name in _FREE)
    if key in names or key in _groups() or is_free:
        return
    near = (
        difflib.get_close_matches(key, names, n=1, cutoff=0.8)
        or _same_last_part(key)
        or difflib.get_close_matches(key, names, n=1, cutoff=LIKENESS)
    )
    hint = _did_you_mean(near, dashes) or "bitcycle train RECIPE --print-config prints all keys"
    raise ValueError(f"unknown {what}; {hint}")


def _fail_group(key: str, what: str, dashes: str = "") -> NoReturn:
    """Raise for a value in place of a group's keys, such as `--lr 0.1` or `--optimizer sgd`."""
    inside = [name for name in option_names() if name.startswith(f"{key}.")]
    main = [name for name in inside if name.endswith((".name", ".forward"))]
    hint = _did_you_mean([*main, *_same_last_part(key)] or inside, dashes)
    raise ValueError(f"{what} is a group of keys and takes no value; {hint}")


def _same_last_part(key: str) -> list[str]:
    """The keys of other groups with the same last part: `optimizer.lr` for `lr`."""
    last = key.rpartition(".")[2]
    return [name for name in option_names() if name.rpartition(".")[2] == last]


def _did_you_mean(names: Sequence[str], dashes: str) -> str:
    quoted = [f"'{dashes}{name}'" for name in names[:_MOST_GUESSES]]
    *first, last = quoted or [""]
    listed = f"{', '.join(first)} or {last}" if first else last
    return f"did you mean {listed}?" if names else ""


@functools.cache
def _groups() -> frozenset[str]:
    """The keys that have keys below them, such as `optimizer`."""
    return frozenset(name.rpartition(".")[0] for name in option_names()) - {""}


def _check_null(settings: Mapping[str, Any], source: str) -> None:
    """Raise for a null where a value must be; the parser accepts one anywhere."""
    for key, kind in _types_by_key().items():
        *groups, last = key.split(".")
        group: Any = settings
        for name in groups:
            group = group.get(name, {})
        if last in group and group[last] is None and type(None) not in get_args(kind):
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
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_strict_loader())
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text file: {error}") from None
    except RecursionError:
        raise ValueError(f"{path} is not valid YAML: it is nested too deeply") from None
    except yaml.MarkedYAMLError as error:
        reason = ", ".join(filter(None, (error.context, error.problem)))
        raise ValueError(f"{path}, line {error.problem_mark.line + 1}: {reason}") from None
    # a number, date or tag whose text does not fit it fails with whatever Python raises
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} is not valid YAML: {reason}") from None


@functools.cache
def _strict_loader() -> Any:
    """A safe loader that takes neither aliases nor a key twice.

    A file of a kilobyte can repeat aliases of aliases until they stand for 2^100 values. Of equal
    keys YAML keeps the last without a word.
    """
    yaml = require("yaml", extra="train", purpose=_PURPOSE)

    class StrictLoader(yaml.SafeLoader):  # type: ignore[misc, name-defined]
        def compose_node(self, parent: Any, index: Any) -> Any:
            event = self.peek_event()
            if isinstance(event, yaml.AliasEvent) and event.anchor in self.anchors:
                problem = f"the alias *{event.anchor} is not allowed; write its value again"
                raise self.Refused(problem=problem, problem_mark=event.start_mark)
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            first_lines: dict[Any, int] = {}
            for key, _value in node.value if isinstance(node, yaml.MappingNode) else ():
                if not isinstance(key, yaml.ScalarNode):
                    continue  # a list as a key fails below
                name, line = self.construct_object(key), key.start_mark.line + 1
                if name in first_lines:
                    problem = f"the key {key.value!r} is also in line {first_lines[name]}"
                    raise self.Refused(problem=problem, problem_mark=key.start_mark)
                first_lines[name] = line
            return super().construct_mapping(node, deep)

        class Refused(yaml.MarkedYAMLError):  # type: ignore[misc, name-defined]
            """Valid YAML that is not taken."""

    return StrictLoader


def read_own_yaml(file: Traversable) -> Any:
    """The plain data of a YAML file of this package, by the faster parser where it is built."""
    yaml = require("yaml", extra="train", purpose="recipes and studies")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(file.read_text(encoding="utf-8"), Loader=loader)
