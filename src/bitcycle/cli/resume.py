"""`bitcycle resume RUN`: resume an interrupted run."""

from __future__ import annotations

import argparse
from typing import Any


def register(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "resume", help="resume an interrupted run from its last complete checkpoint"
    )
    parser.add_argument("directory", help="the folder of the run")
    parser.add_argument("--quiet", action="store_true", help="print the result only")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Resume the run and print its result."""
    from bitcycle.cli.train import close_process_group, print_result
    from bitcycle.native.allocator import keep_freed_memory
    from bitcycle.train.run import resume

    keep_freed_memory()
    print_result(resume(arguments.directory, show="quiet" if arguments.quiet else "auto"))
    close_process_group()
    return 0
