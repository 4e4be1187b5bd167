"""Compile the native library with the system's C++ compiler, in seconds.

`pip install` calls this; `python -m bitcycle.native.build` makes it anew beside the sources, in a
checkout that is installed with `pip install -e .`. CXX names another compiler. The flags are the
same everywhere: one file serves every processor of an architecture.
"""

from __future__ import annotations

import hashlib
import os
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
NAME = "libbitcycle.so"  # on every system: ctypes loads a file of any name
NOTE = "not_built.txt"  # in place of the library: why there is none
COMPILERS = ("c++", "g++", "clang++")
# without these options pip keeps the installed version, or the wheel of it in its cache
REINSTALL = "pip install --force-reinstall --no-deps --no-cache-dir"
FLAGS = (
    "-std=c++17", "-O3", "-g0", "-fPIC", "-pthread", "-fvisibility=hidden", "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",  # codes are equal to the bit on every processor
)  # fmt: skip


class BuildError(Exception):
    """The library cannot be compiled, and why."""


def find_sources(folder: Path = FOLDER) -> list[Path]:
    """The C++ files; none in an installed wheel."""
    return sorted(folder.glob("*.cpp"))


def fingerprint(folder: Path = FOLDER) -> str:
    """The package's version and a hash of sources and flags; a library carries that of its own."""
    version = runpy.run_path(str(folder.parent / "version.py"))["VERSION"]
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for path in sorted([*folder.glob("*.h"), *find_sources(folder)]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{version} {digest.hexdigest()[:16]}"


def how_to_build() -> str:
    """The command that builds the library: in a checkout, or of an installed package."""
    if find_sources():
        return "run python -m bitcycle.native.build"
    return f"run {REINSTALL} SOURCE, the checkout or the sdist of bitcycle"


def find_compiler() -> list[str]:
    """CXX, or the first of c++, g++ and clang++ that is on the PATH."""
    named = shlex.split(os.environ.get("CXX", ""))
    if named:
        if shutil.which(named[0]) is None:
            raise BuildError(f"CXX={shlex.join(named)}: no such compiler")
        return named
    for name in COMPILERS:
        if shutil.which(name):
            return [name]
    raise BuildError(f"no C++ compiler found (looked for {', '.join(COMPILERS)})")


def compile_library(target: Path) -> None:
    """Compile and link `target`, which appears whole or not at all.

    Raises:
        BuildError: there is no compiler, or it failed.
    """
    compiler = find_compiler()
    define = f'-DBITCYCLE_VERSION="{fingerprint()}"'
    with tempfile.TemporaryDirectory() as folder:
        sources = [path.name for path in find_sources()]
        objects = [str(Path(folder, name).with_suffix(".o")) for name in sources]
        commands = [
            [*compiler, *FLAGS, define, "-c", source, "-o", made]
            for source, made in zip(sources, objects, strict=True)
        ]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(_run, commands))
        linking = [] if sys.platform == "darwin" else ["-ldl", "-Wl,-s"]
        library = str(Path(folder, NAME))
        _run([*compiler, "-shared", "-pthread", *objects, *linking, "-o", library])
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f"{target.name}.{os.getpid()}.tmp")
        shutil.copyfile(library, part)
        part.replace(target)


def is_current(library: Path) -> bool:
    """Whether the file was made from the sources as they are."""
    return library.exists() and fingerprint().encode() in library.read_bytes()


def _run(command: list[str]) -> None:
    # file names without their folder, so that no path gets into the library
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.splitlines() or [f"exit code {done.returncode}"]
        error = next((line for line in lines if "error" in line), lines[0])
        raise BuildError(f"{command[0]} failed: {error.strip()}")


def build(folder: Path = FOLDER) -> str | None:
    """Put the library into `folder`, or a note that says why not; return what the note says.

    Does nothing if the library is there, unless CXX asks for a compiler.
    """
    library, note = folder / NAME, folder / NOTE
    if is_current(library) and "CXX" not in os.environ:
        return None
    try:
        if sys.platform == "win32":
            raise BuildError("Windows is not supported")
        compile_library(library)
    except (BuildError, OSError) as error:
        library.unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        note.write_text(f"{error}\n", encoding="utf-8")
        return str(error)
    note.unlink(missing_ok=True)
    return None


def main() -> int:
    """Build beside the sources."""
    if not find_sources():
        print(f"bitcycle: no sources here; {how_to_build()}", file=sys.stderr)
        return 1
    reason = build()
    if reason:
        print(f"bitcycle: no native library: {reason}", file=sys.stderr)
        return 1
    print(FOLDER / NAME)
    return 0


if __name__ == "__main__":
    sys.exit(main())
