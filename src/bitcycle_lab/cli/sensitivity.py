"""`bitcycle sensitivity RECIPE`: which layers suffer from few bits."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import Any

from bitcycle_lab.cli.train import add_what, named_config

_EXAMPLES = """examples:
  bitcycle sensitivity digits-cpt-3-8-8
  bitcycle sensitivity wikitext2-transformer-cpt-4-8-8-small --bits 3 --data.root ~/data
  bitcycle sensitivity digits-cpt-3-8-8 --after 200 --batches 8 --out digits

Add any key of the configuration as an override, as for `bitcycle train`.
"""


def register(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "sensitivity",
        help="rank the layers by what few bits change",
        description="Train for some steps, then lower one layer at a time, with all others in\n"
        "float32. Layers are ranked by the change of the loss' gradient. The trained weights are\n"
        "discarded.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_what(parser)
    parser.add_argument(
        "--bits", default="4", metavar="BITS",
        help="of weights and activations, or a precision such as w4a4e8 (default 4)",
    )  # fmt: skip
    parser.add_argument("--after", type=int, metavar="N", help="steps to train first (default 50)")
    parser.add_argument("--batches", type=int, metavar="N", help="batches to measure (default 4)")
    parser.add_argument("--out", metavar="DIR", help="folder for a figure and the numbers")
    parser.add_argument("--quiet", action="store_true", help="print the result only")
    parser.set_defaults(run=run, takes_overrides=True)


def run(arguments: argparse.Namespace) -> int:
    """Print the ranking and the patterns of a schedule; write the figure and the numbers."""
    from bitcycle_lab.train.config_file import check_overrides, override
    from bitcycle_lab.train.sensitivity import BATCHES, STEPS, measure_sensitivity

    check_overrides(arguments.overrides, arguments.options)
    config = override(named_config(arguments.what), arguments.overrides)
    folder = None if arguments.out is None else Path(arguments.out).expanduser()
    if folder is not None and folder.exists() and not folder.is_dir():
        raise ValueError(f"--out {folder} is a file; give a folder")
    say = (lambda line: None) if arguments.quiet else (lambda line: print(line, flush=True))
    text = arguments.bits
    found, report = measure_sensitivity(
        config,
        bits=int(text) if text.isdecimal() else text,
        num_steps=STEPS if arguments.after is None else arguments.after,
        num_batches=BATCHES if arguments.batches is None else arguments.batches,
        say=say,
    )
    print(f"\n{found}")
    forward = config.precision.forward
    is_lower = text.isdecimal() and int(text) < 8
    if found.sensitive and is_lower and isinstance(forward, str | int):
        patterns = json.dumps(found.patterns(forward))
        print(f"with 8 bits there: --precision.forward {shlex.quote(patterns)}")
    if folder is not None:
        source = {"recipe": arguments.what, "overrides": arguments.overrides}
        _write(folder, {**report, **source}, found)
    return 0


def _write(folder: Path, report: dict[str, Any], found: Any) -> None:
    from bitcycle.extras import MissingExtraError
    from bitcycle.files import write_json
    from bitcycle_lab.report import plot
    from bitcycle_lab.report.files import save

    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "sensitivity.json", report)
    print(f"numbers:     {folder / 'sensitivity.json'}")
    try:
        print(f"picture:     {save(plot(found), folder / 'sensitivity.png')}")
    except MissingExtraError as error:
        print(f"picture:     none, {error}")
