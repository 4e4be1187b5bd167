"""`bitcycle compare RUN RUN ...`: results, settings that differ and learning curves."""

from __future__ import annotations

import argparse
import json
from typing import Any


def register(subparsers: Any) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "compare",
        help="a few runs side by side",
        description="Compares runs, finished or not; seeds of one configuration are one row.",
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", help="folders of runs, such as runs/*")
    parser.add_argument("--output", help="draw learning curves and bits into this .png or .svg")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run_compare)


def run_compare(arguments: argparse.Namespace) -> int:
    """Prints the tables, draws the picture."""
    from bitcycle.analysis.compare import compare_runs, comparison_json, comparison_tables
    from bitcycle.tables import print_tables

    comparison = compare_runs(arguments.runs)
    if arguments.json:
        print(json.dumps(comparison_json(comparison), indent=2))
    else:
        print_tables(comparison_tables(comparison))
    if arguments.output is not None:
        from bitcycle.report import plot
        from bitcycle.report.files import save

        path = save(plot(comparison), arguments.output)
        if not arguments.json:
            print(f"wrote {path}")
    return 0
