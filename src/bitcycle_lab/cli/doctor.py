"""`bitcycle doctor`: what this machine has, and whether every kernel is right on it."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

DEFAULT_NAME = "bitcycle-doctor.json"
_EXAMPLES = """examples:
  bitcycle doctor
  bitcycle doctor --device cuda:1 --output report.json
  bitcycle doctor --quick --json

The exit code is 1 if a kernel is wrong. The report has no user names, folders or host names.
"""


def register(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "doctor",
        help="check every kernel on this machine, and write a report for bug reports",
        description="Show what this machine has and which kernel auto chooses for which bits, and\n"
        "why. Compare the rounding of every quantizer and format with plain torch, and the\n"
        "products of every kernel with float64, on the device itself. Time three layers.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", help="cpu, cuda or cuda:1 (default: a GPU if there is one)")
    parser.add_argument("--quick", "--no-timing", action="store_true", help="leave out the times")
    parser.add_argument(
        "--output", metavar="FILE",
        help=f"of the report (default: {DEFAULT_NAME} in the current folder)",
    )  # fmt: skip
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the report as JSON, and write a file only with --output",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Examine the device, print the report and write it."""
    import json

    from bitcycle.files import write_json
    from bitcycle_lab.doctor import examine, find_device
    from bitcycle_lab.doctor.run import count_steps
    from bitcycle_lab.doctor.times import timed_layers
    from bitcycle_lab.train.progress import make_reporter

    device = find_device(arguments.device)
    target = None
    if arguments.output is not None or not arguments.json:
        target = _target(arguments.output or DEFAULT_NAME)
    layers = () if arguments.quick else timed_layers(device)
    show = "quiet" if arguments.json else "auto"
    steps = count_steps(device, layers)
    with make_reporter(show, log_file=None, title="doctor", total_steps=steps) as reporter:  # type: ignore[arg-type]
        report = examine(device, layers=layers, say=reporter.say, advance=reporter.advance)
    print(json.dumps(report.to_dict(), indent=2) if arguments.json else f"\n{report}", flush=True)
    if target is not None:
        write_json(target, report.to_dict())
        if not arguments.json:
            print(f"wrote {target}; attach it to a bug report")
    return 1 if report.failed else 0


def _target(name: str) -> Path:
    target = Path(name).expanduser()
    if target.is_dir():
        raise ValueError(f"--output {target} is a folder; give a file")
    if not target.parent.is_dir():
        raise ValueError(f"--output {target}: there is no folder {target.parent}")
    if not os.access(target.parent, os.W_OK):
        raise ValueError(f"--output {target}: the folder {target.parent} cannot be written to")
    return target
