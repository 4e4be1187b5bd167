"""`bitcycle export RUN`: write a trained model to ONNX, safetensors or a torch file."""

from __future__ import annotations

import argparse
from typing import Any


def register(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "export", help="export a trained run to ONNX, safetensors or a torch state dict"
    )
    parser.add_argument("directory", metavar="RUN", help="the folder of the run")
    parser.add_argument("--to", choices=("onnx", "safetensors", "torch"), required=True)
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="the file (default: RUN/export/model.onnx, .safetensors or .pt)",
    )
    parser.add_argument(
        "--precision",
        default="high",
        help="high (the highest of the schedule, default), scheduled, full (float32) or bits: w4a4",
    )
    parser.add_argument("--checkpoint", choices=("last", "best"), default="last")
    parser.add_argument(
        "--codes",
        action="store_true",
        help="safetensors: store weights as integer codes and scales; otherwise they are float32 "
        "on their grids, and the file is no smaller than float32",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run, takes_overrides=True)


def run(arguments: argparse.Namespace) -> int:
    """Export the run; returns 1 if the file does not agree with the run's evaluation."""
    import json
    from dataclasses import asdict

    from bitcycle_lab.export import export_run

    done = export_run(
        arguments.directory,
        to=arguments.to,
        output=arguments.output,
        precision=arguments.precision,
        checkpoint=arguments.checkpoint,
        codes=arguments.codes,
        overrides=arguments.overrides,
    )
    if arguments.json:
        facts = {"is_within_tolerance": done.check.is_within, **asdict(done)}
        print(json.dumps(facts, default=str))
    else:
        print(done)
    return 0 if done.check.is_within else 1
