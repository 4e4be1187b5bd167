"""The library is found, loaded once, and its absence is explained."""

import ctypes
import functools
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import bitcycle as bc
from bitcycle.kernels import choice
from bitcycle.native import build
from bitcycle.native import library as native
from bitcycle.warnings import BitcycleWarning

is_built = pytest.mark.skipif(
    native.library() is None, reason=f"native library: {native.missing_reason()}"
)


@pytest.fixture
def fresh(monkeypatch):
    """The functions as in a new process; another instruction set does not outlive the test."""
    monkeypatch.delenv(native.SWITCH, raising=False)
    before = native.instruction_set()
    for name in ("_open", "library", "warn_missing"):
        function = getattr(native, name).__wrapped__
        monkeypatch.setattr(native, name, functools.cache(function))
    yield monkeypatch
    if before:
        ctypes.CDLL(str(Path(native.__file__).with_name(build.NAME))).bitcycle_tiles(
            before.encode()
        )


def warnings_of(calls):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(calls):
            native.warn_missing()
    assert all(w.category is BitcycleWarning for w in caught)
    return [str(w.message) for w in caught]


@is_built
@pytest.mark.parametrize("name", ["portable", "avx2", "avx512_vnni"])
def test_the_switch_names_an_instruction_set(fresh, name):
    best = native.instruction_set()
    names = native.INSTRUCTION_SETS
    fresh.setenv(native.SWITCH, name)
    native._open.cache_clear()
    native.library.cache_clear()
    if names.index(name) > names.index(best):
        with pytest.raises(ValueError, match=name):
            native.library()
        return
    assert native.instruction_set() == name
    threads = torch.get_num_threads()
    assert native.describe() == f"native library: {name}, {threads} thread" + "s" * (threads > 1)
    assert native.missing_reason() is None
    assert warnings_of(2) == []


@is_built
def test_an_unknown_instruction_set_is_an_error_that_lists_the_known_ones(fresh):
    fresh.setenv(native.SWITCH, "avx9")
    with pytest.raises(ValueError, match="avx9"):
        native.library()


def test_switched_off_it_is_missing_without_a_warning(fresh):
    fresh.setenv(native.SWITCH, "0")
    assert native.library() is None
    assert native.instruction_set() is None
    assert native.describe() == "native library: missing (switched off by BITCYCLE_NATIVE=0)"
    assert warnings_of(2) == []


def test_a_library_that_was_not_built_is_explained_and_warned_of_once(fresh, tmp_path):
    fresh.setattr(native, "FILE", tmp_path / build.NAME)
    (tmp_path / build.NOTE).write_text("no C++ compiler found\n")
    way_out = "install a C++17 compiler (Debian: g++) and run python -m bitcycle.native.build"
    reason = f"no C++ compiler found; {way_out}"
    assert native.missing_reason() == reason
    assert warnings_of(3) == [
        f"without its native library bitcycle is slower than float32: {reason}"
    ]


def test_two_conversions_without_the_library_warn_once(fresh, tmp_path):
    fresh.setattr(native, "FILE", tmp_path / build.NAME)
    fresh.setattr(choice, "warn_missing", native.warn_missing)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    with pytest.warns(BitcycleWarning) as caught:
        [bc.quantize_model(part) for part in model]
    assert ["slower than float32" in str(w.message) for w in caught] == [True]


def test_without_a_note_it_was_not_built(fresh, tmp_path):
    fresh.setattr(native, "FILE", tmp_path / build.NAME)
    assert native.missing_reason().startswith("it was not built; install a C++17 compiler")


def test_a_damaged_file_is_refused(fresh, tmp_path):
    fresh.setattr(native, "FILE", tmp_path / build.NAME)
    (tmp_path / build.NAME).write_bytes(b"no library")
    assert native.library() is None
    assert native.missing_reason().startswith("it cannot be loaded: ")
    assert native.missing_reason().endswith("; run python -m bitcycle.native.build")


@is_built
def test_a_library_of_other_sources_is_refused(fresh):
    fresh.setattr(build, "fingerprint", lambda: "0.1.0 other")
    assert native.library() is None
    assert "built from other sources" in native.missing_reason()


@is_built
def test_a_wheel_has_no_sources_and_compares_the_version(fresh):
    fresh.setattr(build, "find_sources", list)
    assert native.library() is not None
    native._open.cache_clear()
    native.library.cache_clear()
    fresh.setattr(native, "VERSION", "99.0.0")
    assert native.library() is None


def test_the_fingerprint_depends_on_every_source(tmp_path):
    folder = tmp_path / "native"
    folder.mkdir()
    (tmp_path / "version.py").write_text('VERSION = "1.2.3"\n')
    seen = set()
    for name in ("a.h", "b.cpp"):
        for text in ("x", "y"):
            (folder / name).write_text(text)
            seen.add(build.fingerprint(folder))
    assert len(seen) == 4
    assert all(text.startswith("1.2.3 ") for text in seen)


def test_without_a_thread_pool_the_reason_says_so(fresh):
    class Serial:
        """A library that found no OpenMP."""

        def bitcycle_has_pool(self):
            return 0

        def bitcycle_tiles(self, name):
            return b"avx2"

    fresh.setattr(native, "_open", Serial)
    assert native.describe().startswith("native library: avx2, 1 thread (no thread pool")
    assert warnings_of(1) == []


PROCESS = """
import json, os
import torch
import bitcycle

def loaded(word):
    lines = open("/proc/self/maps").read().splitlines()
    return sorted({line.split()[-1] for line in lines if word in line.split("/")[-1]})

at_import = loaded("libbitcycle")
from bitcycle.native.library import library
counts = []
for threads in (1, 2, 3):
    torch.set_num_threads(threads)
    torch.randn(200, 200) @ torch.randn(200, 200)
    counts.append(library().bitcycle_count_threads(torch.get_num_threads()))
reading, writing = os.pipe()
if os.fork() == 0:  # the pool's threads are not in the child
    os.write(writing, str(library().bitcycle_count_threads(3)).encode())
    os._exit(0)
in_child = int(os.read(reading, 10))
print(json.dumps([at_import, loaded("gomp"), counts, in_child]))
"""


@is_built
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_one_thread_pool_that_obeys_torch_and_a_fork_that_does_not_hang():
    environment = {key: value for key, value in os.environ.items() if "OMP_" not in key}
    done = subprocess.run(
        [sys.executable, "-c", PROCESS], capture_output=True, text=True, timeout=60, check=False,
        env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    at_import, pools, counts, in_child = json.loads(done.stdout)
    assert at_import == []  # importing loads nothing
    assert len(pools) == 1
    assert counts == [1, 2, 3]
    assert in_child == 1
