"""`python -m tools.results`: gather results into data files, make pages from them.

    python -m tools.results gather digits --output runs --to results
    python -m tools.results gather speed.json --to results
    python -m tools.results gather runs/*-range-test/range-test.json --to results
    python -m tools.results render results --fill README.md docs/*.md
    python -m tools.results times results/data/studies.json [--only table2]

What is gathered is added to what is there: runs of a study, range tests, landscapes, run
times, ends of runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bitcycle.study.results import open_study, read_options, read_study
from bitcycle.study.study import StudyOptions
from tools.results.folder import add, gather_files, write
from tools.results.page import Data
from tools.results.study_data import gather
from tools.results.times import write_times


def main(words: Sequence[str] | None = None) -> int:
    """Runs one command and prints the paths that changed."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.results",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, dest="command")
    own = commands.add_parser("gather", help="add a study's runs, or files of a measurement")
    own.add_argument("what", nargs="+", metavar="STUDY|FILE.json")
    own.add_argument("--output", default="runs", help="where the runs are")
    own.add_argument("--seeds", type=int, nargs="+")
    own.add_argument("--threads", type=int)
    own.add_argument("--to", type=Path, default=Path("results"), metavar="FOLDER")
    own = commands.add_parser("render", help="make every page of a folder again")
    own.add_argument("folder", type=Path)
    own.add_argument("--fill", type=Path, nargs="+", default=[], metavar="DOCUMENT")
    own = commands.add_parser("times", help="measure what every study takes")
    own.add_argument("file", type=Path)
    own.add_argument("--only", action="append", metavar="STUDY")
    arguments, overrides = parser.parse_known_args(words)
    if overrides and arguments.command != "gather":
        parser.error(f"unrecognized arguments: {' '.join(overrides)}")
    try:
        for path in _run(arguments, overrides):
            print(path)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _run(arguments: argparse.Namespace, overrides: Sequence[str]) -> list[Path]:
    if arguments.command == "render":
        return write(arguments.folder, arguments.fill)
    if arguments.command == "times":
        return [write_times(arguments.file, arguments.only)]
    paths = [Path(word) for word in arguments.what]
    if all(path.suffix == ".json" for path in paths):
        data: Data = gather_files(paths)
    elif len(paths) == 1:
        data = _gather_study(arguments, overrides)
    else:
        raise ValueError(f"{' '.join(arguments.what)}: give one study, or JSON files only")
    return [add(arguments.to, data), *write(arguments.to)]


def _gather_study(arguments: argparse.Namespace, overrides: Sequence[str]) -> Data:
    given = StudyOptions(
        overrides=tuple(overrides),
        seeds=None if arguments.seeds is None else tuple(arguments.seeds),
        threads=arguments.threads,
    )
    result = read_study(open_study(arguments.what[0], arguments.output, given), arguments.output)
    if not result.count("done"):
        raise ValueError(f"no run of {result.study.name} is done below {arguments.output}")
    stored = read_options(arguments.output, result.study.name) or StudyOptions()
    return gather(result, stored if given == StudyOptions() else given)


if __name__ == "__main__":
    sys.exit(main())
