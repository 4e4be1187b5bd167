"""Options of every command that counts what a model costs."""

from __future__ import annotations

import argparse


def add_counting_options(parser: argparse.ArgumentParser) -> None:
    """The model's own options, layers to leave out, and the convention."""
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of the model, such as num_classes=100; may be repeated",
    )
    parser.add_argument("--skip", nargs="+", metavar="PATTERN", help="layers that stay float32")
    parser.add_argument(
        "--convention",
        default="exact",
        metavar="NAME",
        help="exact (default), paper or followup: how published costs were counted",
    )
