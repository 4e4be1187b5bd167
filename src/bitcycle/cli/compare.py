"""`bitcycle compare RUN RUN ...`: results, different settings and learning curves."""

from __future__ import annotations

import argparse
import json
from typing import Any


def register(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "compare",
        help="compare the results and settings of runs",
        description="Compare runs, finished or not. Seeds of one configuration are one row. Of\n"
        "two runs of one seed, and of runs that repeat a configuration and a seed, also say\n"
        "whether the weights are equal.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", help="folders of runs, such as runs/*")
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="also draw learning curves and bits to this .png or .svg file",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the tables, draw the figure."""
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
