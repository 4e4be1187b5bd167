"""`bitcycle range-test RECIPE`: the precision range test."""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from bitcycle.cli.train import add_what, find_config
from bitcycle.extras import MissingExtraError
from bitcycle.range_curves import SHARE

_EXAMPLES = """examples:
  bitcycle range-test digits-cpt-3-8-8
  bitcycle range-test wikitext2-lstm-cpt-5-8-8-small --data.root ~/data --share 0.5
  bitcycle range-test cifar100-resnet74-cpt-3-8-8 --data.root ~/data --criterion paper --upper

Add any key of the configuration as an override, as for `bitcycle train`.
"""


def register(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "range-test",
        help="find the lowest precision at which a model learns nearly as fast",
        description="Precision range test: train at 8 bits, 7 bits, ... for some steps each, from\n"
        "the same weights and on the same batches. It finds the lowest precision at which the\n"
        "training loss falls nearly as far as at the highest: the lower end of the schedule.\n"
        "The trained weights are discarded.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_what(parser)
    parser.add_argument(
        "--criterion",
        choices=("relative", "paper"),
        help="relative (default): a share of the drop in loss at the highest precision; paper: "
        "a gain above a threshold, at rising bits, as in CPT",
    )
    parser.add_argument("--low", type=int, metavar="BITS", help="lowest precision (default 2)")
    parser.add_argument(
        "--high",
        type=int,
        metavar="BITS",
        help="highest precision (default: the highest of the recipe's schedule)",
    )
    parser.add_argument(
        "--steps-per-precision",
        type=int,
        metavar="N",
        help="default: for a test of 2 %% of the run, between 20 and 100; paper: the steps of a "
        "cycle / number of precisions, at least 100",
    )
    parser.add_argument(
        "--window",
        type=int,
        metavar="N",
        help="steps per mean (default: a quarter of the steps per precision)",
    )
    relative = parser.add_argument_group("relative criterion")
    relative.add_argument(
        "--share",
        type=float,
        metavar="S",
        help=f"share of the drop at the highest precision that passes (default {SHARE})",
    )
    relative.add_argument(
        "--repeats",
        type=int,
        metavar="N",
        help="repeats at most, with other batches and seeds (default 3)",
    )
    paper = parser.add_argument_group("paper's criterion (each of these selects it)")
    goal = paper.add_mutually_exclusive_group()
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
    paper.add_argument(
        "--reset", action="store_true", help="start every precision from the same weights"
    )
    paper.add_argument("--upper", action="store_true", help="also find the upper bound")
    paper.add_argument(
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

    check_overrides(arguments.overrides, arguments.options)
    config = override(find_config(arguments.what), arguments.overrides)
    config = replace(config, range_test=_settings(config.range_test, arguments))
    low, high = config.range_test.low, arguments.high
    if high is not None and low > high:
        raise ValueError(f"--low ({low}) must be <= --high ({high}); change one of them")
    is_paper = config.range_test.criterion == "paper"
    kind = "reset-" if config.range_test.reset else "paper-" if is_paper else ""
    default = Path(config.output) / f"{config.run_name}-{kind}range-test"
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
    if report.test is not None:
        print(f"\n{report.curve}\n")
        print(f"lower bound: {report.test.low} bits")
        if arguments.upper:
            print(f"upper bound: {report.test.high} bits")
        for note in report.test.notes:
            print(f"note:        {note}")
        command = ["bitcycle", "train", arguments.what, *_other_overrides(arguments.overrides)]
        print(f"next:        {shlex.join(command)} --precision.forward {report.forward}")
    print(f"cost:        {report.cost}")
    source = {"recipe": arguments.what, "overrides": arguments.overrides}
    _write(folder, report, source)
    if error is not None:
        print(f"bitcycle: {error}", file=sys.stderr)
        return 1
    return 0


def _named_criterion(arguments: argparse.Namespace) -> str | None:
    """The criterion by --criterion or the override of its key; ValueError if they differ."""
    named, words = None, arguments.overrides
    for word, following in zip(words, [*words[1:], ""], strict=False):
        option, has_value, value = word.partition("=")
        if option == "--range_test.criterion":
            named = value if has_value else following
    named = None if named == "null" else named
    if None not in (named, arguments.criterion) and named != arguments.criterion:
        raise ValueError(
            f"--range_test.criterion {named} contradicts --criterion {arguments.criterion}: leave "
            "one of them out"
        )
    return arguments.criterion or named


def _settings(base: Any, arguments: argparse.Namespace) -> Any:
    from bitcycle.range_test import check_threshold, choose_criterion

    relative = {"--share": arguments.share, "--repeats": arguments.repeats}
    paper = {
        "--threshold": arguments.threshold,
        "--chance": arguments.chance,
        "--reset": arguments.reset or None,
        "--upper": arguments.upper or None,
        "--stop-early": arguments.stop_early or None,
    }
    criterion = _named_criterion(arguments)
    if criterion is None and not any(value is not None for value in relative.values()):
        criterion = "paper" if base.criterion == "paper" else None
    criterion = choose_criterion(criterion, relative, paper)
    threshold = arguments.threshold
    if arguments.chance is not None:
        threshold = check_threshold(arguments.chance, None)
    changes = {
        "low": arguments.low,
        "steps_per_precision": arguments.steps_per_precision,
        "window": arguments.window,
        "share": arguments.share,
        "repeats": arguments.repeats,
        "threshold": threshold,
        "reset": arguments.reset or None,
    }
    changed = {key: value for key, value in changes.items() if value is not None}
    if criterion == "relative" and base.criterion == "paper":
        changed |= {"threshold": None, "reset": False}
    return replace(base, criterion=criterion, **changed)


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
