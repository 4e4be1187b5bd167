"""The native library under sanitizers, with random shapes: tests/bitcycle/native/fuzz.cpp says how.

For longer than a test: `python -m tests.bitcycle.native.test_sanitized 600 --seed 7`.
"""

import argparse
import functools
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bitcycle.native import build

DRIVER = Path(__file__).with_name("fuzz.cpp")
INCLUDED = ("encode.cpp", "packing.cpp")  # by the driver
SANITIZERS = {
    "memory": "-fsanitize=address,undefined",
    "threads": "-fsanitize=thread",
}
# O1: the instruction sets' assembly is the same, and compiling takes half the time
FLAGS = ("-std=c++17", "-O1", "-g1", "-pthread", "-ffp-contract=off", "-fno-sanitize-recover=all")


def run(command: list[str], **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


@functools.cache
def why_not(sanitizer: str) -> str:
    """Why this compiler cannot make a sanitized program that runs here, or ''."""
    try:
        compiler = build.find_compiler()
    except build.BuildError as error:
        return str(error)
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "a.cpp"), Path(folder, "a")
        source.write_text("int main() {}\n")
        made = run([*compiler, SANITIZERS[sanitizer], str(source), "-o", str(program)])
        if made.returncode or run([str(program)]).returncode:
            return f"{compiler[0]} has no {SANITIZERS[sanitizer]}"
    return ""


def compile_fuzz(sanitizer: str, folder: Path) -> Path:
    """The library's sources and the driver as one program."""
    compiler = [*build.find_compiler(), *FLAGS, SANITIZERS[sanitizer], f"-I{build.FOLDER}"]
    sources = [path for path in build.find_sources() if path.name not in INCLUDED]

    def compile_one(source: Path) -> str:
        # their workspaces are the driver's, which end at a page without access
        define = [] if source.name == "parallel.cpp" else ["-Dworkspace=guarded_workspace"]
        made = str(folder / f"{source.stem}.o")
        done = run([*compiler, *define, "-c", str(source), "-o", made])
        assert done.returncode == 0, done.stderr
        return made

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compile_one, [*sources, DRIVER]))
    program = folder / "fuzz"
    # rdynamic: the library looks the thread pool up in the process
    done = run([*compiler, "-rdynamic", *objects, "-ldl", "-o", str(program)])
    assert done.returncode == 0, done.stderr
    return program


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_no_function_reads_or_writes_beside_its_operands(sanitizer, tmp_path):
    if reason := why_not(sanitizer):
        pytest.skip(reason)
    done = run([str(compile_fuzz(sanitizer, tmp_path)), "1", "5"])
    assert done.returncode == 0, done.stderr
    counts = dict(line.split() for line in done.stdout.splitlines())
    assert set(counts) == {"gemm", "conv", "encode", "packing", "formats", "layer"}


def main() -> int:
    """Fuzz for as long as the user says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sanitizer", choices=SANITIZERS, default="memory")
    parser.add_argument("--case", type=int, help="only this case of the seed")
    chosen = parser.parse_args()
    if reason := why_not(chosen.sanitizer):
        print(reason, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        program = compile_fuzz(chosen.sanitizer, Path(folder))
        case = [] if chosen.case is None else [str(chosen.case)]
        words = [str(program), str(chosen.seed), str(chosen.seconds), *case]
        return subprocess.run(words, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
