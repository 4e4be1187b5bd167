"""`pip install` puts the native library into the package, and works without a compiler."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from bitcycle.native import build

ROOT = Path(__file__).parents[3]


def compiler_missing():
    try:
        build.find_compiler()
    except build.BuildError as error:
        return str(error)
    return ""


needs_compiler = pytest.mark.skipif(bool(compiler_missing()), reason=compiler_missing())


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


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the sources, so that a build leaves nothing in the checkout."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    ignored = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__", build.NOTE)
    shutil.copytree(ROOT / "src", folder / "src", ignore=ignored)
    return folder


def run(*command, folder, **environment):
    plain = {k: v for k, v in os.environ.items() if k not in ("CXX", "PYTHONPATH")}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=plain | environment, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def make_wheel(checkout, into, **environment):
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    shown = run(
        "-m", "pip", "wheel", "-v", ".", *options, "-w", into, folder=checkout, **environment
    )
    shutil.rmtree(checkout / "build")
    (wheel,) = Path(into).glob("*.whl")
    return wheel, shown


def unpack(wheel, into):
    options = ("--no-deps", "--no-index", "--disable-pip-version-check")
    run("-m", "pip", "install", "-q", *options, "--target", into, wheel, folder=into)


STEP = """
import torch, warnings
import bitcycle as bc
from bitcycle.native import library
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    bc.quantize_model(model, verbose=False)
    bc.set_precision(model, "FW4/BW8")
    model(torch.randn(4, 8)).sum().backward()
    model(torch.randn(4, 8)).sum().backward()
print([str(w.message) for w in caught])
print(library.FILE)
print(library.describe())
"""


@needs_compiler
@pytest.mark.slow
def test_a_wheel_has_the_library_and_serves_every_python_3(checkout, tmp_path):
    (tmp_path / "made").mkdir()
    wheel, _ = make_wheel(checkout, tmp_path / "made")
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert wheel.name.endswith(f"-py3-none-{platform}.whl")
    files = [name for name in zipfile.ZipFile(wheel).namelist() if "/native/" in name]
    assert "bitcycle/native/libbitcycle.so" in files
    assert not [name for name in files if name.endswith((".cpp", ".h", ".txt"))]

    (tmp_path / "site").mkdir()
    unpack(wheel, tmp_path / "site")
    shown = run("-c", STEP, folder=tmp_path, PYTHONPATH=str(tmp_path / "site")).splitlines()
    assert shown[-2] == str(tmp_path / "site/bitcycle/native/libbitcycle.so")
    assert "missing" not in shown[-1]
    assert shown[-3] == "[]"


@pytest.mark.slow
def test_without_a_compiler_the_installation_says_so_and_works(checkout, tmp_path):
    (tmp_path / "made").mkdir()
    wheel, shown = make_wheel(checkout, tmp_path / "made", CXX="/nonexistent")
    lines = [line.strip() for line in shown.splitlines() if "native library" in line]
    assert lines == [
        "bitcycle: installed without its native library: CXX=/nonexistent: no such compiler"
    ]
    (tmp_path / "site").mkdir()
    unpack(wheel, tmp_path / "site")
    shown = run("-c", STEP, folder=tmp_path, PYTHONPATH=str(tmp_path / "site")).splitlines()
    reason = (
        "CXX=/nonexistent: no such compiler; install a C++17 compiler (Debian: g++) and run pip "
        "install again"
    )
    assert shown[-1] == f"native library: missing ({reason})"
    assert shown[-3] == str([f"quantized products run in plain torch, and slower: {reason}"])


@needs_compiler
@pytest.mark.slow
def test_an_editable_installation_builds_beside_the_sources_and_always_the_same_bytes(
    checkout, tmp_path
):
    code = f"import setuptools.build_meta as hooks; hooks.build_editable({str(tmp_path)!r})"
    run("-c", code, folder=checkout)
    built = checkout / "src/bitcycle/native" / build.NAME
    build.compile_library(tmp_path / "again.so")
    assert built.read_bytes() == (tmp_path / "again.so").read_bytes()
    built.unlink()


@pytest.mark.slow
def test_the_sdist_has_the_sources_and_not_the_library(checkout, tmp_path):
    code = f"import setuptools.build_meta as hooks; hooks.build_sdist({str(tmp_path)!r})"
    run("-c", code, folder=checkout)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        found = {Path(name).name for name in files.getnames() if "/native/" in name}
    wanted = {path.name for path in (ROOT / "src/bitcycle/native").iterdir() if path.is_file()}
    assert found == {name for name in wanted if name not in (build.NAME, build.NOTE)}
