"""Write files atomically: a crash leaves the old file or the new one, never a part.

The files that a later version reads again say their form, an integer.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FORM = 1  # of a run's configuration, a checkpoint and an exported model


def check_form(found: object, what: str) -> None:
    """Raise ValueError for a file of another form.

    >>> check_form(2, "config.yaml")
    Traceback (most recent call last):
    ...
    ValueError: config.yaml has form 2, expected 1
    """
    if type(found) is not int or found != FORM:
        raise ValueError(f"{what} has form {found!r:.40}, expected {FORM}")


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text with `write_bytes`."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file: write a temporary one, flush it to the disk, rename it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        sync(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


class Appender:
    """Appends lines to a text file, each written to the system at once.

    Without a buffer, closing the file writes nothing and cannot fail.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def add(self, line: str) -> None:
        """Write one line; raises OSError if the disk is full."""
        rest = memoryview(f"{line}\n".encode())
        while rest:
            rest = rest[self._file.write(rest) :]

    def sync(self) -> None:
        """Flush to the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON with `write_text`."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def to_plain(value: Any) -> Any:
    """A value for JSON: tuples as lists, NaN and infinity as texts, which `float` reads again.

    >>> to_plain({"losses": (0.1, math.inf, math.nan)})
    {'losses': [0.1, 'inf', 'nan']}
    """
    if isinstance(value, Mapping):
        return {key: to_plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
