"""`bitcycle study publish`: results as pages that are made from small files, to be committed."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

_DESCRIPTION = """\
Gathers the finished runs of a study, or what bench, range-test, landscape and
benchmarks/saved_memory.py wrote, into FOLDER/data, and makes all pages of FOLDER from the files
there: one per study or kind, and FOLDER/README.md, which sums them up. Range tests and surfaces
are added to those that are there already."""
_EXAMPLES = """examples:
  bitcycle study publish digits --output runs --to results
  bitcycle study publish speed.json --to results
  bitcycle study publish runs/*-range-test/range-test.json --to results
  bitcycle study publish --render results --fill README.md docs/reproduce.md
"""


def add_publish(inner: Any, add_options: Any, overrides: str) -> None:
    """Adds the command to those of `study`; add_options: what all of them have."""
    parser = inner.add_parser(
        "publish",
        help="make pages of results, from runs or again from their files",
        description=_DESCRIPTION,
        epilog=f"{_EXAMPLES}\n{overrides}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "what", nargs="*", metavar="STUDY|FILE",
        help="a name of `study ls`, a YAML file, or JSON files of one kind of measurement",
    )  # fmt: skip
    add_options(parser)
    parser.add_argument("--to", metavar="FOLDER", help="for the pages (default: results)")
    parser.add_argument(
        "--render", metavar="FOLDER", help="make all pages of a folder again, without runs"
    )
    parser.add_argument(
        "--fill", nargs="+", default=[], metavar="FILE",
        help="documents with parts that are made from the results, such as README.md",
    )  # fmt: skip
    parser.set_defaults(run=run_publish, takes_overrides=True)


def run_publish(arguments: argparse.Namespace) -> int:
    """Gathers, makes every page of the folder again, fills documents; prints what changed."""
    from bitcycle.report.evidence.blocks import fill_file
    from bitcycle.report.evidence.render import data_folder, publish, write_folder

    if (arguments.render is None) == (not arguments.what):
        raise ValueError(
            "give a study or the files of a measurement, or --render FOLDER to make pages again"
        )
    _check_used(arguments)
    folder = Path(arguments.render or arguments.to or "results").expanduser()
    if arguments.render is not None and not data_folder(folder).is_dir():
        raise ValueError(f"--render {folder}: there is no folder {data_folder(folder)}")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; give a folder")
    documents = [Path(word).expanduser() for word in arguments.fill]
    for document in documents:
        if not document.is_file():
            raise ValueError(f"--fill {document}: there is no such file")
    if arguments.what:
        name, data = _gather(arguments)
    for path in publish(folder, name, data) if arguments.what else write_folder(folder):
        print(path)
    for document in documents:
        if fill_file(document, folder):
            print(document)
    return 0


def _check_used(arguments: argparse.Namespace) -> None:
    """Options that choose runs are for studies, and --to is for what is gathered."""
    is_study = any(not word.endswith(".json") for word in arguments.what)
    given = {
        "--output": arguments.output != "runs",
        "--seeds": arguments.seeds is not None,
        "--num-seeds": arguments.num_seeds is not None,
        "--threads": arguments.threads is not None,
    }
    chosen = [*arguments.overrides, *(name for name, is_given in given.items() if is_given)]
    if chosen and not is_study:
        what = "--render" if arguments.render is not None else "a page of files"
        raise ValueError(f"{what} does not take {chosen[0]}, which chooses the runs of a study")
    if arguments.render is not None and arguments.to is not None:
        raise ValueError(
            f"--render {arguments.render} makes the pages of that folder; leave out --to"
        )


def _gather(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    from bitcycle.report.evidence.render import gather_files

    paths = [Path(word).expanduser() for word in arguments.what]
    files = [path for path in paths if path.suffix == ".json"]
    if not files and len(paths) == 1:
        return _gather_study(arguments)
    if len(files) < len(paths):
        raise ValueError(f"{' '.join(arguments.what)}: give one study, or JSON files only")
    for path in files:
        if not path.is_file():
            raise ValueError(f"there is no file {path}")
    return gather_files(files)


def _gather_study(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    from bitcycle.cli.study import read, study_options
    from bitcycle.study.adjust import StudyOptions
    from bitcycle.study.options import read_options
    from bitcycle.study.publish.gather import gather

    (arguments.study,) = arguments.what
    result = read(arguments)
    if not result.count("done"):
        raise ValueError(
            f"no run of {result.study.name} is done below {arguments.output}; first: "
            f"bitcycle study run {arguments.study}, or say where its runs are with --output"
        )
    given = study_options(arguments)
    stored = read_options(arguments.output, result.study.name) or StudyOptions()
    options = stored if given == StudyOptions() else given
    return result.study.name, gather(result, options)
