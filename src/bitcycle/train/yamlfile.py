"""YAML files that people write: plain data, or one error that names the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bitcycle.extras import require

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
