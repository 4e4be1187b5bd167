"""`python -m tools.results`: gather runs into data files, render tables and pictures from them.

    python -m tools.results gather digits RUNS
    python -m tools.results render [PAGE ...]

`gather` adds every run of a study that has ended below RUNS to its file in results/data, which may
hold runs of other seeds. `render` rewrites what stands between the markers of pages (see
tools/results/pages.py), by default of every page of the repository.
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
    own.add_argument("study", help="a study of `bitcycle study ls`")
    own.add_argument("runs", type=Path, help="the folder of the runs")
    own.add_argument("--train", action="store_true", help="evaluate runs on training data, too")
    own.add_argument("--replace", action="store_true", help="old runs that differ from new ones")
    own = commands.add_parser("render", help="rewrite tables and pictures of pages")
    own.add_argument("pages", type=Path, nargs="*", metavar="PAGE")
    for each in commands.choices.values():
        each.add_argument("--data", type=Path, default=DATA, metavar="FOLDER")
    arguments = parser.parse_args(words)
    try:
        if arguments.command == "gather":
            path = gather_study(
                arguments.study, arguments.runs, arguments.data,
                with_train=arguments.train, replaces=arguments.replace,
            )  # fmt: skip
            print(path)
            return 0
        files = render(arguments.pages or default_pages(), arguments.data)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for path in outdated(files):
        write_text(path, files[path])
        print(path)
    return 0


def gather_study(name: str, runs: Path, folder: Path, *, with_train: bool, replaces: bool) -> Path:
    """Add the runs of a study to its data file: of every seed, with the options of its last run."""
    seeds = {int(path.name.rpartition("-seed")[2]) for path in runs.glob("*-seed[0-9]*")}
    options = read_options(runs, find_study(name).name) or StudyOptions()
    study = open_study(name, runs, replace(options, seeds=tuple(sorted(seeds)) or None))
    methods = tuple(replace(method, num_seeds=None) for method in study.methods)
    data = gather(read_study(replace(study, methods=methods), runs), with_train=with_train)
    if not any(method["runs"] for method in data["methods"]):
        raise ValueError(f"no run of {study.name} has ended below {runs}")
    path = folder / f"{study.name}.json"
    add(path, data, replaces=replaces)
    return path


if __name__ == "__main__":
    sys.exit(main())
