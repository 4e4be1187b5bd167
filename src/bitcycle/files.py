"""Write files atomically: a crash leaves the old file or the new one, never a part."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


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
