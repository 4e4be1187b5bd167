"""`bitcycle export`: a finished run as ONNX, safetensors or a plain torch state, checked."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bitcycle.export import RunExport


def register(subparsers: Any) -> None:
    """Adds the command."""
    parser = subparsers.add_parser("export", help="write a run as onnx, safetensors or torch")
    parser.add_argument("directory", metavar="RUN", help="the folder of the run")
    parser.add_argument("--to", choices=("onnx", "safetensors", "torch"), required=True)
    parser.add_argument("--output", help="the file (default: RUN/export/model.onnx and so on)")
    parser.add_argument(
        "--precision",
        default="high",
        help="high (the schedule's top), scheduled, full (float32) or bits such as w4a4",
    )
    parser.add_argument("--checkpoint", choices=("last", "best"), default="last")
    parser.add_argument(
        "--codes", action="store_true", help="safetensors: weights as integer codes and scales"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run_export, takes_overrides=True)


def run_export(arguments: argparse.Namespace) -> int:
    """Writes the file and prints what it is; 1 if it is not what the run evaluated to."""
    import json
    from dataclasses import asdict

    from bitcycle.export import export_run

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
        print("\n".join(describe(done)))
    return 0 if done.check.is_within else 1


def describe(done: RunExport) -> list[str]:
    """The file, how its grids are said, the metric of both, and the difference of the outputs."""
    file, check = done.file, done.check
    share = file.num_bytes / file.float_bytes
    lines = [
        f"wrote {file.path}: {file.num_bytes:,} bytes, {share:.0%} of float32; "
        f"step {done.step} at {done.precision}"
    ]
    lines += [f"  {count} {way}" for way, count in sorted(file.ways.items())]
    if file.to == "torch" and "a" in done.precision:
        lines.append("  weights on their grids, activations float32: compared at the weights' bits")
    lines.append(
        f"{check.split} {check.metric}: run {check.run:.4f}, exported {check.exported:.4f}"
    )
    verdict = "within the tolerance" if check.is_within else "NOT within the tolerance"
    lines.append(
        f"outputs (largest {check.largest_output:.3g}) differ by {check.mean_difference:.2g} on "
        f"average, at most {check.largest_difference:.2g}: {verdict} of {check.tolerance:.2g} on "
        "average and 1 % of the metric"
    )
    return lines
