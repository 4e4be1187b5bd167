"""`bitcycle resume RUN`: resume an interrupted run."""

from __future__ import annotations

import argparse
from typing import Any


def register(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "resume",
        help="resume an interrupted run from its last complete checkpoint",
        description="Resume an interrupted run from its last complete checkpoint. Its config.yaml\n"
        "must be the one of that checkpoint. With --accept-changes these settings may differ, and\n"
        "act from that step on: optimizer.* (not its name), lr.* (not its policy), clip_norm,\n"
        "eval.*, threads and deterministic. Places and logs (output, data.root, data.cache_dir,\n"
        "data.num_workers, tracking.*, checkpoint.*) may always change. env.json and log.txt\n"
        "record every change.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", help="the folder of the run")
    parser.add_argument(
        "--accept-changes",
        action="store_true",
        help="use settings of config.yaml that changed since the checkpoint",
    )
    parser.add_argument("--quiet", action="store_true", help="print the result only")
    parser.set_defaults(run=run, shows_log=True)


def run(arguments: argparse.Namespace) -> int:
    """Resume the run and print its result."""
    from bitcycle.native.allocator import keep_freed_memory
    from bitcycle_lab.cli.train import print_result
    from bitcycle_lab.train.run import resume

    keep_freed_memory()
    result = resume(
        arguments.directory,
        show="quiet" if arguments.quiet else "auto",
        accept_changes=arguments.accept_changes,
    )
    print_result(result)
    return 0
