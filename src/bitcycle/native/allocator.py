"""Let the C library keep freed memory, so that a step reuses the pages of the last one.

glibc returns a large freed block to the system at once, and the next large tensor then costs a page
fault for every 4 KiB. The setting is of the whole process: the command line makes it, an import
does not.
"""

from __future__ import annotations

import ctypes
import os

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_TRIM = 2**31 - 1  # bytes, the largest int
_MMAP = (2**30, 2**25)  # bytes; some versions accept no more than the second


def keep_freed_memory() -> bool:
    """Keep freed memory in the process; False where the C library is not glibc."""
    try:
        os.confstr("CS_GNU_LIBC_VERSION")
    except (AttributeError, ValueError):  # Windows; another C library
        return False
    set_option = ctypes.CDLL(None).mallopt
    is_kept = any(set_option(_M_MMAP_THRESHOLD, size) == 1 for size in _MMAP)
    return bool(set_option(_M_TRIM_THRESHOLD, _TRIM) == 1 and is_kept)
