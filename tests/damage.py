"""What can happen to a file, as strategies of hypothesis."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st

ODD_BYTES = (b"\0", b"\xff", b"\x80", b"\n", b"{", b"[", b"-", b"\xff" * 8, b"\0" * 8, b"9" * 20)


class Damage(NamedTuple):
    """One accident; `place` is a fraction of the file's length."""

    kind: str
    place: float
    value: bytes

    def to(self, content: bytes) -> bytes:
        """The bytes after it."""
        at = min(int(self.place * len(content)), max(len(content) - 1, 0))
        if self.kind == "truncated":
            return content[:at]
        if self.kind == "overwritten":
            return content[:at] + self.value + content[at + len(self.value) :]
        if self.kind == "inserted":
            return content[:at] + self.value + content[at:]
        if self.kind == "cut out":
            return content[:at] + content[at + len(self.value) :]
        if self.kind == "doubled":
            return content + content
        assert self.kind == "replaced"
        return self.value


places = st.floats(0, 1, allow_nan=False)
some_bytes = st.one_of(st.sampled_from(ODD_BYTES), st.binary(min_size=1, max_size=12))
# mostly small accidents near the beginning, where headers are
damages = st.builds(
    Damage,
    st.sampled_from(
        ["overwritten", "overwritten", "overwritten", "truncated", "inserted", "cut out", "doubled",
         "replaced"]
    ),
    st.one_of(places, places.map(lambda place: place**6)),
    some_bytes,
)  # fmt: skip


def json_values(number_of: int = 6) -> st.SearchStrategy[Any]:
    """Anything that JSON, or YAML, can hold."""
    leaves = st.one_of(
        st.none(), st.booleans(), st.integers(-3, 3), st.floats(), st.text(max_size=5),
        st.sampled_from([10**6, -(10**9), 10**30, 1e300, "auto", "8", "CR:3-8:2", "w4a4", "$tensor",
                         "../..", "/"]),
    )  # fmt: skip
    keys = st.one_of(st.text(max_size=5), st.sampled_from(["name", "low", "$tensor", "$items"]))
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3)
        ),
        max_leaves=number_of,
    )


def paths_in(value: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every part of plain data, the whole first."""
    found = [prefix]
    items: Any = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        items = enumerate(value)
    for key, inner in items:
        found += paths_in(inner, (*prefix, key))
    return found


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """The data with another part in this place."""
    if not path:
        return new
    first, *rest = path
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[first] = replaced(value[first], tuple(rest), new)
    return copy


@contextmanager
def little_memory(gigabytes: float = 1.0) -> Iterator[None]:
    """An allocation of more than that fails in here, as on a small machine."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = pages * resource.getpagesize() + int(gigabytes * 2**30)
    if soft != resource.RLIM_INFINITY:
        most = min(most, soft)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
