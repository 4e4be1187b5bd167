"""Runs that crashed, kept beside the runs: `<output>/studies/failures.json`, run name -> error."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bitcycle.train.files import write_json


def failures_file(output: str | Path) -> Path:
    """Where they are kept."""
    return Path(output) / "studies" / "failures.json"


def read_failures(output: str | Path) -> dict[str, str]:
    """Run name -> the message it ended with; empty when nothing failed."""
    path = failures_file(output)
    if not path.exists():
        return {}
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): str(message) for name, message in stored.items()}
    except (ValueError, AttributeError) as error:
        raise ValueError(
            f"{path} is damaged ({error}); delete it: failed runs are then tried again"
        ) from None


def write_failures(output: str | Path, failures: dict[str, str]) -> None:
    """Replace what is there."""
    path = failures_file(output)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, failures)


def add_failure(output: str | Path, name: str, message: str) -> None:
    """Note that a run crashed; other studies may do the same at this moment."""
    with _locked(output):
        write_failures(output, {**read_failures(output), name: message})


def remove_failures(output: str | Path, names: Iterable[str]) -> None:
    """Forget these, where they are noted: they are tried again, or have a result after all."""
    gone = set(names)
    if gone.isdisjoint(read_failures(output)):
        return
    with _locked(output):
        kept = {name: m for name, m in read_failures(output).items() if name not in gone}
        write_failures(output, kept)


@contextmanager
def _locked(output: str | Path) -> Iterator[None]:
    path = failures_file(output).with_name(".failures.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
