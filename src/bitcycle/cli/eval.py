"""`bitcycle eval`: a run's weights on a split, at explicit bits."""

from __future__ import annotations

import argparse
from typing import Any


def register(subparsers: Any) -> None:
    """Adds the command."""
    parser = subparsers.add_parser("eval", help="evaluate a run at explicit bits")
    parser.add_argument("directory", help="the folder of the run")
    parser.add_argument(
        "--precision",
        default="high",
        help="high (the schedule's top), scheduled, full (float32) or bits such as w4a4",
    )
    parser.add_argument("--split", choices=("train", "validation", "test"), default="test")
    parser.add_argument("--checkpoint", choices=("last", "best"), default="last")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run_eval, takes_overrides=True)


def run_eval(arguments: argparse.Namespace) -> int:
    """Loads the checkpoint and prints the metrics."""
    import json

    from bitcycle.train.evaluate import evaluate_run

    row = evaluate_run(
        arguments.directory,
        precision=arguments.precision,
        split=arguments.split,
        checkpoint=arguments.checkpoint,
        overrides=arguments.overrides,
    )
    if arguments.json:
        print(json.dumps(row))
    else:
        metrics = "  ".join(f"{name} {value:.4f}" for name, value in row["metrics"].items())
        print(f"{row['split']} at {row['precision']}, step {row['step']}: {metrics}")
    return 0
