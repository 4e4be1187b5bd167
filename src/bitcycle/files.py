"""Files that are whole or not there: written beside their place, flushed to disk, renamed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def sync(path: Path) -> None:
    """Flush a file or a folder's entries to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> None:
    """`write_bytes` of UTF-8 text."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file in one step; a crash leaves the old or the new one."""
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
    """A text file that grows by whole lines, each handed to the system at once.

    Without a buffer nothing is left to write, and to fail, when the file is closed.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def add(self, line: str) -> None:
        """Write one line; raises OSError when the disk takes less than all of it."""
        rest = memoryview(f"{line}\n".encode())
        while rest:
            rest = rest[self._file.write(rest) :]

    def sync(self) -> None:
        """Flush to the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """No more lines."""
        self._file.close()


def write_json(path: Path, value: Any) -> None:
    """`write_text` of readable JSON."""
    write_text(path, json.dumps(value, indent=2) + "\n")
