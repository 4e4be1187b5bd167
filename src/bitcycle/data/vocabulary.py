"""The words of a training text, counted once and kept in a cache that nothing can half-write."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

from bitcycle.data.splits import END_OF_LINE, UNKNOWN


def build_vocabulary(path: Path) -> tuple[str, ...]:
    """The words of a text file, most frequent first (ties by the alphabet), one `<eos>` per line.

    `<unk>` is added when the text does not have it, for unseen words of the other splits.
    """
    counts: Counter[str] = Counter()
    num_lines = 0
    with path.open(encoding="utf-8", newline="\n") as file:
        for line in file:
            counts.update(line.split())
            num_lines += 1
    counts[END_OF_LINE] += num_lines
    counts.setdefault(UNKNOWN, 0)
    return tuple(sorted(counts, key=lambda word: (-counts[word], word)))


def cached_vocabulary(path: Path, cache_dir: Path | None = None) -> tuple[str, ...]:
    """`build_vocabulary`, looked up in the cache by the content of the file.

    A damaged cache is rebuilt, a read-only one is done without. The cache folder is `cache_dir`,
    or bitcycle's in the user's cache folder.
    """
    digest = content_digest(path)
    folder = cache_dir or default_cache_dir()
    cache = folder / f"vocabulary-{digest[:32]}.json"
    known = _read(cache, digest)
    if known is not None:
        return known
    words = build_vocabulary(path)
    with suppress(OSError):  # a cache that cannot be written costs time, nothing else
        write_atomically(cache, json.dumps({"sha256": digest, "words": words}))
    return words


def default_cache_dir() -> Path:
    """`$XDG_CACHE_HOME/bitcycle`, usually `~/.cache/bitcycle`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~/.cache").expanduser()) / "bitcycle"


def content_digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that at any moment it is absent, old or new, never partial."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _read(cache: Path, digest: str) -> tuple[str, ...] | None:
    try:
        content = json.loads(cache.read_text(encoding="utf-8"))
        words = content["words"]
        is_sound = (
            content["sha256"] == digest
            and all(isinstance(word, str) for word in words)
            and len(set(words)) == len(words)
            and {END_OF_LINE, UNKNOWN} <= set(words)
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return tuple(words) if is_sound else None
