"""Freed memory that stays in the process."""

import os
import subprocess
import sys

import pytest

from bitcycle.native import allocator

COUNT_FAULTS = """
import ctypes, importlib.util, resource, sys

spec = importlib.util.spec_from_file_location("allocator", sys.argv[1])
allocator = importlib.util.module_from_spec(spec)
spec.loader.exec_module(allocator)
if sys.argv[2] == "keep":
    assert allocator.keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(8):
    block = libc.malloc(48 << 20)
    ctypes.memset(block, 1, 48 << 20)
    libc.free(block)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def has_glibc():
    try:
        return bool(os.confstr("CS_GNU_LIBC_VERSION"))
    except (AttributeError, ValueError):
        return False


@pytest.mark.skipif(not has_glibc(), reason="needs glibc")
def test_kept_memory_is_mapped_once():
    faults = {}
    for mode in ("keep", "return"):
        command = [sys.executable, "-c", COUNT_FAULTS, allocator.__file__, mode]
        faults[mode] = int(subprocess.run(command, capture_output=True, check=True).stdout)
    assert faults["keep"] < faults["return"] / 4


def test_another_c_library_is_left_alone(monkeypatch):
    def fail(name):
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "confstr", fail)
    monkeypatch.setattr(allocator, "ctypes", None)
    assert not allocator.keep_freed_memory()
