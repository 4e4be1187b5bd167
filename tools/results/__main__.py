"""`python -m tools.results`: gather runs into data files, render tables and pictures from them.

    python -m tools.results gather digits RUNS
    python -m tools.results render [PAGE ...]
    python -m tools.results render --check

`gather` adds the runs of a study below a folder to results/data. `render` rewrites what stands
between the markers of pages (see tools/results/pages.py), by default of every page of the
repository; `--check` writes nothing and fails if a page or picture would change.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bitcycle.files import write_text
from bitcycle_lab.study.results import open_study, read_options, read_study
from bitcycle_lab.study.study import StudyOptions
from bitcycle_lab.study.study_file import find_study
from tools.results.pages import outdated, render
from tools.results.study_data import add, gather

ROOT = Path(__file__).parents[2]
DATA = ROOT / "results" / "data"


def default_pages() -> list[Path]:
    """The pages of the repository that may have markers."""
    return [ROOT / "README.md", *sorted((ROOT / "results").glob("*.md")),
            *sorted((ROOT / "docs").rglob("*.md"))]  # fmt: skip


def main(words: Sequence[str] | None = None) -> int:
    """Runs one command and prints the paths that changed."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.results",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, dest="command")
    own = commands.add_parser("gather", help="add the runs of a study to its data file")
    own.add_argument("study", help="a study's name or YAML file")
    own.add_argument("runs", type=Path, help="the folder of the runs")
    own.add_argument("--seeds", type=int, nargs="+", help="by default those of the last run")
    own = commands.add_parser("render", help="rewrite tables and pictures of pages")
    own.add_argument("pages", type=Path, nargs="*", metavar="PAGE")
    own.add_argument("--check", action="store_true", help="write nothing; fail on a difference")
    for each in commands.choices.values():
        each.add_argument("--data", type=Path, default=DATA, metavar="FOLDER")
    arguments = parser.parse_args(words)
    try:
        return run(arguments)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def run(arguments: argparse.Namespace) -> int:
    """Gather or render; 1 if a check fails."""
    if arguments.command == "gather":
        print(gather_study(arguments.study, arguments.runs, arguments.seeds, arguments.data))
        return 0
    files = render(arguments.pages or default_pages(), arguments.data)
    changed = outdated(files)
    for path in changed:
        print(path)
        if not arguments.check:
            write_text(path, files[path])
    return int(arguments.check and bool(changed))


def gather_study(name: str, runs: Path, seeds: Sequence[int] | None, folder: Path) -> Path:
    """Add the runs of a study to its data file; with the options that it was last run with."""
    options = read_options(runs, find_study(name).name) or StudyOptions()
    if seeds is not None:
        options = replace(options, seeds=tuple(seeds))
    result = read_study(open_study(name, runs, options), runs)
    if not result.count("done") + result.count("failed"):
        raise ValueError(f"no run of {result.study.name} has ended below {runs}")
    path = folder / f"{result.study.name}.json"
    add(path, gather(result))
    return path


if __name__ == "__main__":
    sys.exit(main())
