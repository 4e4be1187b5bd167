"""`bitcycle report TARGET ...`: an HTML page of runs, folders of runs or studies."""

from __future__ import annotations

import argparse
import os
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bitcycle_lab.study.results import StudyResult

_EXAMPLES = """examples:
  bitcycle report runs/digits-cpt-3-8-8-seed0
  bitcycle report runs --output runs.html
  bitcycle report runs/mine runs/theirs
  bitcycle report demo --open
"""


def register(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "report",
        help="write an HTML report of runs or of a study",
        description="Write one HTML page with tables, charts, configurations and environment.\n"
        "The page needs no network.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "targets",
        metavar="TARGET",
        nargs="+",
        help="folder of a run, folder with runs, name of `study ls`, or YAML file of a study; the "
        "runs of several are on one page",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="the page (default: report.html in the folder of the runs or of the study; of several "
        "targets, in the folder that all are in)",
    )
    parser.add_argument(
        "--runs", default="runs", metavar="DIR", help="folder of a study's runs (default: runs)"
    )
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the page and print its path."""
    path = _write(arguments.targets, arguments.output, arguments.runs)
    print(path)
    if arguments.open and not webbrowser.open(path.resolve().as_uri()):
        print("no browser could be started; open the file in one")
    return 0


def _write(targets: list[str], output: str | None, runs: str) -> Path:
    from bitcycle_lab.report.page import write_page, write_run_page
    from bitcycle_lab.study.comparison import find_runs
    from bitcycle_lab.train.run_directory import RunDirectory

    folders = [Path(target).expanduser() for target in targets]
    if len(targets) == 1 and not folders[0].is_dir():
        return write_page(_study(targets[0], runs), output, source=targets[0])
    found = []
    for target, folder in zip(targets, folders, strict=True):
        if folder.is_dir():
            found += find_runs(folder)
        else:
            study = _study(target, runs)
            directories = [run.directory for method in study.methods for run in method.runs]
            found += [path for path in directories if RunDirectory(path).exists]
    common = folders[0]
    if len(targets) > 1:
        common = Path(os.path.commonpath([path.resolve().parent for path in found]))
    return write_run_page(found, output or common / "report.html")


def _study(target: str, runs: str) -> StudyResult:
    from bitcycle_lab.study.results import open_study, read_study

    if "/" in target and not Path(target).expanduser().exists():
        raise ValueError(f"there is no folder or file {target}")
    result = read_study(open_study(target, runs), runs)
    if result.count("missing") == result.num_runs:
        raise ValueError(
            f"no run of {result.study.name} has started in {runs}; first run bitcycle study run "
            f"{target}, or set the folder of its runs with --runs"
        )
    return result
