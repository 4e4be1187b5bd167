"""`bitcycle schedule CR:3-8:8 --steps 64000`: draw schedules and print their cost."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from typing import Any, Literal

from bitcycle.bits import PlainBits
from bitcycle.schedules import Schedule, Static, parse_schedule
from bitcycle_lab.report.files import check_path, save
from bitcycle_lab.report.terminal import MIN_WIDTH, Ink, chart, ink_for

_EXAMPLES = """examples:
  bitcycle schedule CR:3-8:32
  bitcycle schedule LR:3-8:8 "seq(CR:3-8:8@0.8, fp32)" --backward 8 --png bits.png
  bitcycle schedule CR:mxfp4,mxfp8,bf16:8 stages:nvfp4@0.82,bf16 --backward bf16
"""


def register(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "schedule",
        help="draw precision schedules and print their cost",
        description="Draw schedules over a run; print the share of each precision, the number of\n"
        "switches, the mean bits and the cost.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "schedules", nargs="+", metavar="SCHEDULE", help="text such as CR:3-8:32, 8, nvfp4 or fp32"
    )
    parser.add_argument("--steps", type=int, default=64_000, help="total steps (default 64000)")
    parser.add_argument(
        "--backward",
        default="default",
        help="bits of errors (gradients of layer outputs), for the cost: 8, bf16, fp32 (default: 8 "
        "up to 8 bits forward, fp32 with fp32, none with formats)",
    )
    parser.add_argument("--png", metavar="FILE", help="also draw to this .png file (matplotlib)")
    parser.add_argument("--width", type=int, help="columns to use (default: the terminal's)")
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Draw the figure, then print."""
    width = arguments.width
    if width is None:
        width = max(MIN_WIDTH, shutil.get_terminal_size().columns)
    if width < MIN_WIDTH:
        raise ValueError(f"--width must be at least {MIN_WIDTH}, got {width}")
    target = None if arguments.png is None else check_path(arguments.png, ".png")
    backward = _backward_bits(arguments.backward)
    schedules = [parse_schedule(text) for text in arguments.schedules]
    previews = [one.preview(arguments.steps, backward=backward) for one in schedules]
    if target is not None:
        from bitcycle_lab.report.figures.schedules import draw_previews

        save(draw_previews(previews), target)
    if arguments.json:
        print(json.dumps([preview.to_dict() for preview in previews], indent=2))
        return 0
    ink = ink_for(sys.stdout.encoding)
    blocks = [
        f"{_draw(preview.schedule, arguments.steps, width=width, ink=ink)}\n{preview.text(width)}"
        for preview in previews
    ]
    print("\n\n".join(blocks))
    if target is not None:
        print(f"\nwrote {target}")
    return 0


def _draw(schedule: Schedule, total_steps: int, *, width: int, ink: Ink) -> str:
    values, definition = schedule.values(total_steps), schedule.levels
    return chart(values, width=width, ink=ink, definition=definition)


def _backward_bits(text: str) -> PlainBits | Literal["default"]:
    if text == "default":
        return "default"
    parsed = parse_schedule(text)
    if not isinstance(parsed, Static):
        raise ValueError(f"--backward must be a number of bits, a format or fp32, got {text!r}")
    return parsed.bits
