"""`bitcycle range-test RECIPE`: the precision range test."""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

from bitcycle.extras import MissingExtraError
from bitcycle.range_criteria import Criterion, RangeTest, RangeTestConfig
from bitcycle_lab.cli.train import add_what, named_config

_EXAMPLES = """examples:
  bitcycle range-test digits-cpt-3-8-8
  bitcycle range-test wikitext2-lstm-cpt-5-8-8-small --data.root ~/data --share 0.5
  bitcycle range-test cifar100-resnet74-cpt-3-8-8 --data.root ~/data --criterion paper

Add any key of the configuration as an override, as for `bitcycle train`.
"""


def register(subparsers: Any) -> None:
    """Add the command, with an option per setting."""
    parser = subparsers.add_parser(
        "range-test",
        help="find the lowest precision that still learns",
        description="Precision range test: train at 8 bits, 7 bits, ... for some steps each, from\n"
        "the same weights and on the same batches. It finds the lowest precision at which the\n"
        "training loss falls nearly as far as at the highest: the lower end of the schedule.\n"
        "The trained weights are discarded.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_what(parser)
    for setting in fields(RangeTestConfig):
        option, text = f"--{setting.name.replace('_', '-')}", setting.metadata["help"]
        if setting.name == "criterion":
            parser.add_argument(option, choices=get_args(Criterion), help=text)
        elif setting.name in ("share", "threshold"):
            parser.add_argument(option, type=float, metavar="X", help=text)
        else:
            parser.add_argument(option, type=int, metavar="N", help=text)
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="folder for the figure and the numbers (default: in the recipe's output)",
    )
    parser.add_argument("--quiet", action="store_true", help="print the result only")
    parser.set_defaults(run=run, takes_overrides=True)


def run(arguments: argparse.Namespace) -> int:
    """Run the test, print the table and the next command, write the figure and the numbers."""
    from bitcycle_lab.train.config_file import check_overrides, override
    from bitcycle_lab.train.range_test import cost_text, find_precision_range

    check_overrides(arguments.overrides, arguments.options)
    config = override(named_config(arguments.what), arguments.overrides)
    given = {field.name: getattr(arguments, field.name) for field in fields(RangeTestConfig)}
    given = {name: value for name, value in given.items() if value is not None}
    config = replace(config, range_test=replace(config.range_test, **given))
    kind = "paper-" if config.range_test.is_paper else ""
    default = Path(config.output) / f"{config.run_name}-{kind}range-test"
    folder = Path(arguments.out).expanduser() if arguments.out else default
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out {folder} is a file; give a folder")
    say = (lambda line: None) if arguments.quiet else (lambda line: print(line, flush=True))
    test, error, report = find_precision_range(config, say=say)
    if error is None:
        command = ["bitcycle", "train", arguments.what, *_other_overrides(arguments.overrides)]
        print(f"\n{test}")
        print(f"next:        {shlex.join(command)} --precision.forward {report['forward']}")
    print(f"cost:        {cost_text(report['steps'], report['bitops'], report['run_steps'])}")
    source = {"recipe": arguments.what, "overrides": arguments.overrides}
    _write(folder, {**report, **source}, test)
    if error is not None:
        print(f"bitcycle: {error}", file=sys.stderr)
    return 0 if error is None else 1


def _other_overrides(overrides: list[str]) -> list[str]:
    """The overrides without the forward schedule, which the result replaces."""
    words, kept = iter(overrides), []
    for word in words:
        pair = [word] if "=" in word else [word, *[value for value in [next(words, None)] if value]]
        if not pair[0].startswith("--precision.forward"):
            kept += pair
    return kept


def _write(folder: Path, report: dict[str, Any], test: RangeTest) -> None:
    from bitcycle.files import write_json
    from bitcycle_lab.report import plot
    from bitcycle_lab.report.files import save

    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "range-test.json", report)
    print(f"numbers:     {folder / 'range-test.json'}")
    try:
        print(f"picture:     {save(plot(test), folder / 'range-test.png')}")
    except MissingExtraError as error:
        print(f"picture:     none, {error}")
