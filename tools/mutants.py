"""Mutation testing: random mutants of the source, each run against the tests.

    python tools/mutants.py coverage.db --per-package 10 --seed 0 > mutants.jsonl
    python tools/mutants.py before.db --again mutants.jsonl --tree ../before   # those that lived

A mutant changes one operator, comparison, condition or number of one file. The coverage database
of a suite says which tests run the changed line; only those are run, until one fails:

    pytest -m "not slow" --cov=bitcycle --cov=bitcycle_lab --cov-branch --cov-context=test
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

PACKAGES = {  # name -> files and folders below src
    "schedules": ("bitcycle/schedules",),
    "quantizers": ("bitcycle/quantizers",),
    "ops": ("bitcycle/ops",),
    "nn": ("bitcycle/nn",),
    "kernels": ("bitcycle/kernels",),
    "convert": tuple(
        f"bitcycle/{name}.py" for name in ("convert", "parallel", "patterns", "model_precision")
    ),
    "scheduler": ("bitcycle/scheduler.py",),
    "cost": ("bitcycle/cost",),
    "train": ("bitcycle_lab/train",),
    "recipes": ("bitcycle_lab/recipes", "bitcycle_lab/study/study_file.py"),
}
OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Lt: ast.LtE, ast.LtE: ast.Lt,
    ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot,
    ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
TIMEOUT = 60  # seconds of a test: a mutant that never ends is noticed


@dataclass(frozen=True)
class Mutant:
    """One changed place. number: which of the places of its file, in the order of the source."""

    package: str
    file: str
    line: int
    number: int
    what: str


def places(tree: ast.AST) -> Iterator[tuple[ast.AST, str, str]]:
    """(node, field, description) of everything that can be changed, in a fixed order."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp) and type(node.op) in OPERATORS:
            yield node, "op", f"{type(node.op).__name__} -> {OPERATORS[type(node.op)].__name__}"
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in OPERATORS:
            old = type(node.ops[0])
            yield node, "ops", f"{old.__name__} -> {OPERATORS[old].__name__}"
        elif isinstance(node, ast.If | ast.IfExp):
            yield node, "test", "condition negated"
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            yield node, "value", f"{node.value} -> {node.value + 1}"


def change(node: ast.AST, field: str) -> None:
    """Make the change in place."""
    value = getattr(node, field)
    if field == "op":
        node.op = OPERATORS[type(value)]()  # type: ignore[attr-defined]
    elif field == "ops":
        value[0] = OPERATORS[type(value[0])]()
    elif field == "test":
        node.test = ast.UnaryOp(ast.Not(), value)  # type: ignore[attr-defined]
    else:
        node.value = value + 1  # type: ignore[attr-defined]


def typing_lines(source: str) -> set[int]:
    """Lines below `if TYPE_CHECKING`, which never run."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            lines |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def draw(
    root: Path, package: str, count: int, seed: int, is_run: dict[str, set[int]]
) -> list[Mutant]:
    """`count` random mutants of lines that some test runs."""
    found: list[Mutant] = []
    for name in PACKAGES[package]:
        path = root / "src" / name
        if not path.exists():
            continue
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            source = file.read_text(encoding="utf-8")
            relative = str(file.relative_to(root))
            without = typing_lines(source)
            for number, (node, _, what) in enumerate(places(ast.parse(source))):
                line = int(node.lineno)  # type: ignore[attr-defined]
                if line not in without and line in is_run.get(relative, set()):
                    found.append(Mutant(package, relative, line, number, what))
    return random.Random(f"{package} {seed}").sample(found, min(count, len(found)))


class Coverage:
    """Which tests ran which lines, from the database of coverage.py."""

    def __init__(self, database: str) -> None:
        self._db = sqlite3.connect(database)
        self._files = {
            path[path.index("src/bitcycle"):]: number
            for number, path in self._db.execute("select id, path from file")
            if "src/bitcycle" in path
        }  # fmt: skip

    def lines(self) -> dict[str, set[int]]:
        """File -> lines that some test runs; not those that only an import runs."""
        query = (
            "select distinct arc.fromno, arc.tono from arc join context on context.id = context_id "
            "where file_id = ? and context != ''"
        )
        return {
            path: {abs(n) for row in self._db.execute(query, (number,)) for n in row}
            for path, number in self._files.items()
        }

    def tests(self, file: str, line: int) -> list[str]:
        """The ids of the tests that run a line, the nearest first."""
        query = (
            "select distinct context.context from arc join context on context.id = context_id "
            "where file_id = ? and (abs(fromno) = ? or abs(tono) = ?) and context != ''"
        )
        rows = self._db.execute(query, (self._files.get(file, -1), line, line))
        # without parameters, which may hold anything
        found = {context.partition("|")[0].partition("[")[0] for (context,) in rows}
        own = Path(file).relative_to("src").with_suffix("").parts  # ("bitcycle", "nn", "conv")
        return sorted(
            (test for test in found if test.startswith("tests/")),  # no doctests
            key=lambda test: (-sum(part in test for part in own), test),
        )


def run(root: Path, mutant: Mutant, tests: list[str], tree: Path) -> str:
    """Run the tests on a copy of the source with the change: "killed by TEST" or "lived"."""
    source = (root / mutant.file).read_text(encoding="utf-8")
    syntax = ast.parse(source)
    node, field, _ = list(places(syntax))[mutant.number]
    change(node, field)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "src"
        shutil.copytree(root / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
        changed = copy.parent / mutant.file
        changed.write_text(ast.unparse(ast.fix_missing_locations(syntax)), encoding="utf-8")
        ids = Path(folder) / "tests.txt"
        ids.write_text("\n".join(tests), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p",
                   "no:cacheprovider", f"--timeout={TIMEOUT}", f"@{ids}"]  # fmt: skip
        env = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1",
               "PYTHONDONTWRITEBYTECODE": "1"}  # fmt: skip
        done = subprocess.run(
            command, cwd=tree, env=env, capture_output=True, text=True, check=False
        )
    if done.returncode == 0:
        return "lived"
    if done.returncode < 0:
        return "killed by a crash"
    said = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if not said:  # an id that is not there, a broken set-up: no answer
        raise RuntimeError(f"pytest ended with {done.returncode}: {done.stdout}{done.stderr}")
    return f"killed by {said[0].split(' - ')[0]}"


def main() -> None:
    """Draw and run, one JSON line for each mutant."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("coverage", help="database written by coverage.py with contexts")
    parser.add_argument("--per-package", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", choices=PACKAGES, help="a package; repeatable")
    parser.add_argument("--again", help="a former output: run its mutants that lived")
    parser.add_argument("--tree", default=".", help="the checkout whose tests are run")
    options = parser.parse_args()
    root, tree = Path.cwd(), Path(options.tree).resolve()
    coverage = Coverage(options.coverage)
    if options.again:
        rows = [json.loads(line) for line in Path(options.again).read_text().splitlines()]
        chosen = [
            Mutant(**{key: row[key] for key in Mutant.__dataclass_fields__})
            for row in rows
            if row["result"] == "lived"
        ]
    else:
        is_run = coverage.lines()
        chosen = [
            mutant
            for package in options.only or PACKAGES
            for mutant in draw(root, package, options.per_package, options.seed, is_run)
        ]
    for mutant in chosen:
        tests = coverage.tests(mutant.file, mutant.line)
        result = run(root, mutant, tests, tree) if tests else "lived"
        print(json.dumps({**asdict(mutant), "tests": len(tests), "result": result}), flush=True)


if __name__ == "__main__":
    main()
