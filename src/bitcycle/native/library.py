"""Find and load the native library, and say why there is none.

The environment variable BITCYCLE_NATIVE names an instruction set (portable, avx2, avx512_vnni) to
use instead of the processor's best, or 0 for none of the library.
"""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

FILE = Path(__file__).with_name("libbitcycle.so")
SWITCH = "BITCYCLE_NATIVE"


@functools.cache
def library() -> ctypes.CDLL | None:
    """The library, or None if it was not built or is switched off."""
    name = os.environ.get(SWITCH)
    if name == "0" or not FILE.exists():
        return None
    found = ctypes.CDLL(str(FILE))
    found.bitcycle_tiles.restype = ctypes.c_char_p
    if name and found.bitcycle_tiles(name.encode()) is None:
        raise ValueError(f"{SWITCH}={name}: this processor has no such instruction set")
    return found


def instruction_set() -> str | None:
    """The instruction set in use: portable, avx2 or avx512_vnni; None without the library."""
    found = library()
    return None if found is None else found.bitcycle_tiles(None).decode()
