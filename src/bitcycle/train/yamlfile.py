"""YAML files that people write: plain data, or one error that names the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bitcycle.extras import require

MOST_VALUES = 100_000  # of a file whose aliases are written out


def read_yaml(path: Path, *, purpose: str) -> Any:
    """The data of a file; nothing it names is run, and its aliases cannot grow without end."""
    yaml = require("yaml", extra="train", purpose=purpose)
    try:
        return _load(yaml, path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text file: {error}") from None
    except RecursionError:
        raise ValueError(f"{path} is not valid YAML: it is nested too deeply") from None
    # a number, date or tag whose text does not fit it fails with whatever Python raises
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} is not valid YAML: {reason}") from None


def _load(yaml: Any, text: str) -> Any:
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        num_values = _count(node, {})
        if num_values > MOST_VALUES:
            raise ValueError(
                f"{num_values:.3g} values with its aliases written out; at most {MOST_VALUES:,}"
            )
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _count(node: Any, known: dict[int, int | None]) -> int:
    """Values in and below a node; each alias counts what it stands for."""
    if isinstance(node.value, str):
        return 1
    if id(node) in known:
        number = known[id(node)]
        if number is None:
            raise ValueError("an alias stands inside what it stands for")
        return number
    known[id(node)] = None
    number = 1
    for entry in node.value:
        for part in entry if isinstance(entry, tuple) else (entry,):  # a key and its value
            number += _count(part, known)
    known[id(node)] = number
    return number
