"""`bitcycle completion`: print a shell completion script."""

from __future__ import annotations

import argparse
from typing import Any


def register(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser("completion", help="print a shell completion script")
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"))
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the script: `eval "$(bitcycle completion bash)"`."""
    from bitcycle.extras import require
    from bitcycle_lab.cli.main import build_parser

    shtab = require("shtab", extra="train", purpose="completion scripts")
    parser, _ = build_parser()
    print(shtab.complete(parser, shell=arguments.shell))
    return 0
