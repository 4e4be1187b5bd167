"""Find and load the native library, and say why there is none.

The environment variable BITCYCLE_NATIVE names an instruction set (portable, avx2, avx512_vnni) to
use instead of the processor's best, or 0 for none of the library. It is read once, when the library
is first asked for.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import warnings
from pathlib import Path

import torch  # first: the library looks for torch's thread pool in the process

from bitcycle.native import build
from bitcycle.version import VERSION
from bitcycle.warnings import BitcycleWarning

FILE = Path(__file__).with_name(build.NAME)
SWITCH = "BITCYCLE_NATIVE"
INSTRUCTION_SETS = ("portable", "avx2", "avx512_vnni")


@functools.cache
def library() -> ctypes.CDLL | None:
    """The library, or None: see `missing_reason`."""
    found = _open()
    return None if isinstance(found, str) else found


def missing_reason() -> str | None:
    """Why there is no library, or why it runs on one thread only, and the way out."""
    found = _open()
    if isinstance(found, str):
        return found
    if not found.bitcycle_has_pool():
        return "no thread pool of torch (OpenMP) here, or the process is a fork: runs on one thread"
    return None


def instruction_set() -> str | None:
    """The instruction set in use: portable, avx2 or avx512_vnni; None without the library."""
    found = library()
    return None if found is None else found.bitcycle_tiles(None).decode()


def describe() -> str:
    """One line for audits and benchmarks.

    "native library: avx2, 2 threads", or "native library: missing (and why)".
    """
    reason = missing_reason()
    if library() is None:
        return f"native library: missing ({reason})"
    if reason:
        return f"native library: {instruction_set()}, 1 thread ({reason})"
    threads = torch.get_num_threads()
    return f"native library: {instruction_set()}, {threads} thread{'s' if threads > 1 else ''}"


@functools.cache
def warn_missing() -> None:
    """Warn, once per process, that products run without the library; not if that was asked for."""
    if library() is None and os.environ.get(SWITCH) != "0":
        message = f"without its native library bitcycle is slower than float32: {missing_reason()}"
        warnings.warn(message, BitcycleWarning, stacklevel=2)


@functools.cache
def _open() -> ctypes.CDLL | str:
    """The library, or why there is none."""
    name = os.environ.get(SWITCH, "")
    if name == "0":
        return f"switched off by {SWITCH}=0"
    if not FILE.exists():
        return _not_built()
    try:
        found = ctypes.CDLL(str(FILE))
    except OSError as error:
        return f"it cannot be loaded: {error}; {build.how_to_build()}"
    if not _is_current(found):
        return f"{FILE.name} was built from other sources; {build.how_to_build()}"
    found.bitcycle_tiles.restype = ctypes.c_char_p
    if name and found.bitcycle_tiles(name.encode()) is None:
        known = [other for other in INSTRUCTION_SETS if found.bitcycle_tiles(other.encode())]
        found.bitcycle_tiles(known[-1].encode())
        raise ValueError(
            f"{SWITCH}={name}: not an instruction set of this processor; "
            f"use one of {', '.join(known)}, or 0 for no native library"
        )
    return found


def _not_built() -> str:
    note = FILE.with_name(build.NOTE)
    reason = note.read_text(encoding="utf-8").strip() if note.exists() else "it was not built"
    if sys.platform == "win32":
        return reason
    return f"{reason}; install a C++17 compiler (Debian: g++) and {build.how_to_build()}"


def _is_current(found: ctypes.CDLL) -> bool:
    """Whether the library is that of these Python files.

    A struct that differs between the two would crash the process. A wheel has both; a checkout with
    `pip install -e .` keeps its library when the sources change.
    """
    try:
        found.bitcycle_version.restype = ctypes.c_char_p
        version = found.bitcycle_version().decode()
    except AttributeError:
        return False
    if build.find_sources():
        return bool(version == build.fingerprint())
    return bool(version.split()[0] == VERSION)
