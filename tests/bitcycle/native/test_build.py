"""The build finds a compiler, or leaves a note that says why there is no library.

`tests/test_distribution.py` installs what it builds.
"""

import sys

import pytest

from bitcycle.native import build


def test_cxx_names_the_compiler_with_its_options(monkeypatch):
    monkeypatch.setenv("CXX", f"{sys.executable} -v")
    assert build.find_compiler() == [sys.executable, "-v"]


def test_a_compiler_that_does_not_exist_is_named(monkeypatch):
    monkeypatch.setenv("CXX", "/nonexistent")
    with pytest.raises(build.BuildError, match="/nonexistent"):
        build.find_compiler()


def test_without_a_compiler_a_note_takes_the_place_of_an_old_library(monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / build.NAME).write_bytes(b"of other sources")
    assert build.build(tmp_path) == "no C++ compiler found (looked for c++, g++, clang++)"
    assert (tmp_path / build.NOTE).read_text().startswith("no C++ compiler found")
    assert not (tmp_path / build.NAME).exists()


def test_a_failing_compiler_is_quoted(monkeypatch, tmp_path):
    compiler = tmp_path / "cxx"
    compiler.write_text(
        "#!/bin/sh\necho 'In file included from x' >&2\necho 'x:1: error: no' >&2\nexit 1\n"
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert build.build(tmp_path) == f"{compiler} failed: x:1: error: no"


def test_a_library_of_these_sources_is_not_built_again(monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(build, "compile_library", None)
    (tmp_path / build.NAME).write_bytes(b"ELF..." + build.fingerprint().encode() + b"...")
    assert build.build(tmp_path) is None


def test_the_command_that_builds_is_of_a_checkout_or_of_an_installation(monkeypatch, capsys):
    assert build.how_to_build() == "run python -m bitcycle.native.build"
    monkeypatch.setattr(build, "find_sources", list)
    command = "pip install --force-reinstall --no-deps --no-cache-dir SOURCE"
    assert build.how_to_build().startswith(f"run {command}, ")
    assert build.main() == 1
    assert command in capsys.readouterr().err
