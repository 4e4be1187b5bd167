"""`bitcycle eval RUN`: evaluate the weights of a run at explicit bits."""

from __future__ import annotations

import argparse
from typing import Any


def register(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser("eval", help="evaluate a trained run at explicit bits")
    parser.add_argument("directory", help="the folder of the run")
    parser.add_argument(
        "--precision",
        default="high",
        help="high (the highest of the schedule, default), scheduled, full (float32) or bits: w4a4",
    )
    parser.add_argument("--split", choices=("train", "validation", "test"), default="test")
    parser.add_argument("--checkpoint", choices=("last", "best"), default="last")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run, takes_overrides=True)


def run(arguments: argparse.Namespace) -> int:
    """Load the checkpoint and print the metrics."""
    import json

    from bitcycle_lab.train.evaluate import evaluate_run

    result = evaluate_run(
        arguments.directory,
        precision=arguments.precision,
        split=arguments.split,
        checkpoint=arguments.checkpoint,
        overrides=arguments.overrides,
    )
    if arguments.json:
        print(json.dumps(result))
    else:
        metrics = "  ".join(f"{name} {value:.4f}" for name, value in result["metrics"].items())
        print(f"{result['split']} at {result['precision']}, step {result['step']}: {metrics}")
    return 0
