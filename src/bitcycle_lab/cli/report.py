"""`bitcycle report TARGET`: an HTML page of a run, a folder of runs or a study."""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path
from typing import Any

_EXAMPLES = """examples:
  bitcycle report runs/digits-cpt-3-8-8-seed0
  bitcycle report runs --output runs.html
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
        "target",
        metavar="TARGET",
        help="folder of a run, folder with runs, name of `study ls`, or YAML file of a study",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="the page (default: report.html in the folder of the runs or of the study)",
    )
    parser.add_argument(
        "--runs", default="runs", metavar="DIR", help="folder of a study's runs (default: runs)"
    )
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the page and print its path."""
    path = _write(arguments.target, arguments.output, arguments.runs)
    print(path)
    if arguments.open and not webbrowser.open(path.resolve().as_uri()):
        print("no browser could be started; open the file in one")
    return 0


def _write(target: str, output: str | None, runs: str) -> Path:
    from bitcycle_lab.report.page import write_page, write_run_page
    from bitcycle_lab.study.comparison import find_runs
    from bitcycle_lab.study.results import open_study, read_study

    folder = Path(target).expanduser()
    if folder.is_dir():
        return write_run_page(find_runs(folder), output or folder / "report.html")
    if "/" in target and not folder.exists():
        raise ValueError(f"there is no folder or file {target}")
    result = read_study(open_study(target, runs), runs)
    if result.count("missing") == result.num_runs:
        raise ValueError(
            f"no run of {result.study.name} has started in {runs}; first run bitcycle study run "
            f"{target}, or set the folder of its runs with --runs"
        )
    return write_page(result, output, source=target)
