"""The points of a surface that are already computed, in a file that an interruption cannot harm."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bitcycle.landscape.grid import Point
from bitcycle.landscape.numbers import from_plain, to_plain
from bitcycle.train.files import Appender


class PointFile:
    """One line for what the points belong to, then one line each: [row, column, loss, seconds].

    Lines that are cut short, by a killed process or a full disk, do not count. A file of other
    points (another grid, other weights) is begun anew. Seconds add up over interruptions; a line
    may lack them.
    """

    def __init__(self, path: Path, origin: Mapping[str, Any]) -> None:
        self.path = path
        self.losses: dict[Point, float] = {}
        self._seconds: dict[Point, float | None] = {}
        self._origin = to_plain(dict(origin))
        self._appender: Appender | None = None

    @property
    def seconds(self) -> float | None:
        """Wall-clock of all points together; None when some do not tell."""
        known = [took for took in self._seconds.values() if took is not None]
        return sum(known) if len(known) == len(self._seconds) else None

    @contextmanager
    def opened(self) -> Iterator[PointFile]:
        """Read what is there and take more; for one process at a time."""
        with self.path.open("a+b") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ValueError(
                    f"{self.path} is being written by another process; wait for it or stop it"
                ) from None
            handle.seek(0)
            text = handle.read().decode(errors="replace")
            self.losses, self._seconds = self._read(text)
            self._appender = Appender(self.path)
            try:
                if not self.losses:
                    os.truncate(self.path, 0)
                    self._appender.add(json.dumps(self._origin))
                elif not text.endswith("\n"):
                    self._appender.add("")
                yield self
            finally:
                self._appender.close()
                self._appender = None

    def read(self) -> dict[Point, float]:
        """The points that are there, without waiting for whoever may be writing more."""
        if not self.path.exists():
            return {}
        return self._read(self.path.read_text(encoding="utf-8", errors="replace"))[0]

    def _read(self, text: str) -> tuple[dict[Point, float], dict[Point, float | None]]:
        losses: dict[Point, float] = {}
        seconds: dict[Point, float | None] = {}
        header, *lines = text.split("\n")
        if _parse(header) != self._origin:
            return losses, seconds
        for entry in map(_parse, lines):
            if isinstance(entry, list) and len(entry) in (3, 4):
                row, column, loss, *took = entry
                losses[row, column] = from_plain(loss)
                seconds[row, column] = took[0] if took else None
        return losses, seconds

    def add(self, point: Point, loss: float, seconds: float | None = None) -> None:
        """Keep one more; seconds: since the one before."""
        assert self._appender is not None
        took = [] if seconds is None else [round(seconds, 4)]
        self._appender.add(json.dumps([*point, to_plain(loss), *took]))
        self.losses[point] = loss
        self._seconds[point] = seconds

    def remove(self) -> None:
        """No longer needed."""
        self.path.unlink(missing_ok=True)


def _parse(line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return None
