"""`bitcycle compare RUN RUN ...`: run folders as a study, and the settings that differ."""

from __future__ import annotations

import argparse
import json
from typing import Any


def register(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "compare",
        help="compare the results and settings of runs",
        description="Compare runs, finished or not. Runs that differ only in the seed are one\n"
        "method; the first finished one is the baseline"
        " of the runs with its task and data.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "runs", metavar="RUN", nargs="+", help="folders of runs, or folders with runs"
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="also draw learning curves and bits to this .png or .svg file",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the tables, draw the figure."""
    from bitcycle.tables import print_tables
    from bitcycle_lab.report.files import check_path, save
    from bitcycle_lab.study.comparison import (
        collect_runs,
        comparison_json,
        comparison_tables,
        find_runs,
    )

    if arguments.output is not None:
        check_path(arguments.output, ".png", ".svg")
    folders = [run for folder in arguments.runs for run in find_runs(folder)]
    result = collect_runs(folders, with_baseline=True)
    if arguments.json:
        print(json.dumps(comparison_json(result), indent=2))
    else:
        print_tables(comparison_tables(result))
    if arguments.output is not None:
        from bitcycle_lab.report.figures.curves import draw_comparison

        path = save(draw_comparison(result), arguments.output)
        if not arguments.json:
            print(f"wrote {path}")
    return 0
