"""Plain and gzipped files alike, where a few bytes cannot unpack to all of the memory."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import BinaryIO, cast

GROWTH = 100  # a thousandfold is what gzip can do; numbers and pictures come to tenfold
FLOOR = 2**26  # bytes that any file may unpack to


def most_bytes(path: Path) -> int:
    """How much may come out of a file: its size, or what data of its packed size could be."""
    size = path.stat().st_size
    return size if path.suffix != ".gz" else FLOOR + GROWTH * size


def open_unpacked(path: Path) -> BinaryIO:
    """The file's bytes, unpacked; ValueError when there are more of them than `most_bytes`."""
    if path.suffix != ".gz":
        return path.open("rb")
    return cast(BinaryIO, _Bounded(path))


class _Bounded(gzip.GzipFile):
    def __init__(self, path: Path) -> None:
        super().__init__(path, "rb")
        self._most = most_bytes(path)

    def read(self, size: int | None = -1) -> bytes:
        """At most that many bytes, and never more than the file may have."""
        room = self._most - self.tell() + 1
        return self._checked(super().read(room if size is None or size < 0 else min(size, room)))

    def read1(self, size: int = -1) -> bytes:
        """What is at hand."""
        return self._checked(super().read1(size))

    def _checked(self, content: bytes) -> bytes:
        if self.tell() > self._most:
            raise ValueError(f"unpacks to more than {self._most:,} bytes, which is no data")
        return content
