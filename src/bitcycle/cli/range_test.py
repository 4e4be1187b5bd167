"""`bitcycle range-test RECIPE`: the precision range test of CPT."""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from bitcycle.cli.train import add_what, find_config
from bitcycle.extras import MissingExtraError

_EXAMPLES = """examples:
  bitcycle range-test digits-cpt-3-8-8
  bitcycle range-test cifar100-resnet74-cpt-3-8-8 --data.root ~/data --upper
  bitcycle range-test wikitext2-lstm-cpt-5-8-8-small --data.root ~/data --threshold 0.5

Add any key of the configuration as an override, as for `bitcycle train`.
"""


def register(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "range-test",
        help="find the lowest precision at which a model still learns",
        description="Precision range test: train at 2 bits, 3 bits, ... for some steps each. It\n"
        "finds the lowest precision at which the model learns: the lower end of its schedule.\n"
        "The trained weights are discarded.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_what(parser)
    parser.add_argument("--low", type=int, metavar="BITS", help="first precision (default 2)")
    parser.add_argument(
        "--high",
        type=int,
        metavar="BITS",
        help="last precision (default: the highest of the recipe's schedule)",
    )
    parser.add_argument(
        "--steps-per-precision",
        type=int,
        metavar="N",
        help="default: the steps of a cycle / number of precisions, at least 100",
    )
    parser.add_argument(
        "--window",
        type=int,
        metavar="N",
        help="steps per mean (default: a quarter of the steps per precision)",
    )
    goal = parser.add_mutually_exclusive_group()
    goal.add_argument(
        "--threshold",
        type=float,
        metavar="GAIN",
        help="gain above which a precision passes (default for accuracies: 2 x chance)",
    )
    goal.add_argument(
        "--chance",
        type=float,
        metavar="PERCENT",
        help="accuracy of a random guess (default: 100 / classes)",
    )
    parser.add_argument(
        "--reset", action="store_true", help="start every precision from the same weights"
    )
    parser.add_argument("--upper", action="store_true", help="also find the upper bound")
    parser.add_argument(
        "--stop-early", action="store_true", help="stop at the first precision that passes"
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="folder for the figure and the numbers (default: in the recipe's output)",
    )
    parser.add_argument("--quiet", action="store_true", help="print the result only")
    parser.set_defaults(run=run, takes_overrides=True)


def run(arguments: argparse.Namespace) -> int:
    """Run the test, print the table and the next command, write the figure and the numbers."""
    from bitcycle.train.config_file import check_overrides, override
    from bitcycle.train.range_test import find_precision_range

    check_overrides(arguments.overrides)
    config = override(find_config(arguments.what), arguments.overrides)
    config = replace(config, range_test=_settings(config.range_test, arguments))
    kind = "reset-range-test" if config.range_test.reset else "range-test"
    default = Path(config.output) / f"{config.run_name}-{kind}"
    folder = Path(arguments.out).expanduser() if arguments.out else default
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out {folder} is a file; give a folder")
    report, error = find_precision_range(
        config,
        high=arguments.high,
        find_upper=arguments.upper,
        stop_early=arguments.stop_early,
        say=(lambda line: None) if arguments.quiet else lambda line: print(line, flush=True),
    )
    cost = f"{report.bitops:.3g} BitOPs for {len(report.curve.bits)} steps"
    if report.test is not None:
        print(f"\n{report.curve}\n\nlower bound: {report.test.low} bits", end="")
        print(f"\nupper bound: {report.test.high} bits" if arguments.upper else "")
        print(f"cost:        {cost}")
        command = ["bitcycle", "train", arguments.what, *_other_overrides(arguments.overrides)]
        print(f"next:        {shlex.join(command)} --precision.forward {report.forward}")
    source = {"recipe": arguments.what, "overrides": arguments.overrides}
    _write(folder, report, source)
    if error is not None:
        print(f"cost:        {cost}")
        print(f"bitcycle: {error}", file=sys.stderr)
        return 1
    return 0


def _settings(base: Any, arguments: argparse.Namespace) -> Any:
    from bitcycle.range_test import check_threshold

    threshold = arguments.threshold
    if arguments.chance is not None:
        threshold = check_threshold(arguments.chance, None)
    changes = {
        "low": arguments.low,
        "steps_per_precision": arguments.steps_per_precision,
        "window": arguments.window,
        "threshold": threshold,
        "reset": arguments.reset or None,
    }
    return replace(base, **{key: value for key, value in changes.items() if value is not None})


def _other_overrides(overrides: list[str]) -> list[str]:
    """The overrides without the forward schedule, which the result replaces."""
    words, kept = iter(overrides), []
    for word in words:
        pair = [word] if "=" in word else [word, *[value for value in [next(words, None)] if value]]
        if not pair[0].startswith("--precision.forward"):
            kept += pair
    return kept


def _write(folder: Path, report: Any, source: dict[str, Any]) -> None:
    from bitcycle.files import write_json
    from bitcycle.report import plot
    from bitcycle.report.files import save

    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "range-test.json", {**report.to_dict(), **source})
    print(f"numbers:     {folder / 'range-test.json'}")
    try:
        path = save(plot(report.test or report.curve), folder / "range-test.png")
        print(f"picture:     {path}")
    except MissingExtraError as error:
        print(f"picture:     none, {error}")
