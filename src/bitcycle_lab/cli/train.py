"""`bitcycle train RECIPE`: train a recipe or a configuration file."""

from __future__ import annotations

import argparse
from typing import Any

_EXAMPLES = """examples:
  bitcycle train digits-cpt-3-8-8
  bitcycle train digits --precision.forward CR:3-8:8 --precision.backward 8 --seed 3
  bitcycle train cifar100-resnet74-cpt-3-8-8 --data.root ~/data --resume auto
  torchrun --nproc-per-node 2 -m bitcycle train my.yaml --optimizer.lr 0.05

Add any key of the configuration as an override; --print-config prints all keys.
"""


def register(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "train",
        help="train a recipe or a configuration file",
        description="Train a recipe or a configuration file. The run's folder, below runs/,\n"
        "contains its configuration, log, checkpoints and result.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_what(parser)
    parser.add_argument(
        "--resume",
        choices=("auto",),
        help="auto: resume the run if its folder exists, else start it, so that a job can be "
        "repeated as it is; `bitcycle resume` takes the folder of a run instead",
    )
    parser.add_argument("--print-config", action="store_true", help="print the whole YAML and exit")
    parser.add_argument("--quiet", action="store_true", help="print the result only")
    parser.set_defaults(run=run, takes_overrides=True, shows_log=True)


def add_what(parser: argparse.ArgumentParser) -> None:
    """Add the recipe or file, which `named_config` requires.

    argparse must not: in `--quite digits`, "digits" is the value of an unknown option, and the
    error to report is the option.
    """
    what = parser.add_argument(
        "what", metavar="RECIPE|FILE", help="a name of `ls recipes`, or a YAML file"
    )
    what.required = False


def run(arguments: argparse.Namespace) -> int:
    """Train the run, or resume it."""
    from bitcycle.native.allocator import keep_freed_memory
    from bitcycle_lab.train.config_file import check_overrides, override, to_yaml
    from bitcycle_lab.train.run import resume_or_run
    from bitcycle_lab.train.run import run as start_run

    check_overrides(arguments.overrides, arguments.options)
    config = override(named_config(arguments.what), arguments.overrides)
    if arguments.print_config:
        print(to_yaml(config), end="")
        return 0
    keep_freed_memory()
    start = resume_or_run if arguments.resume == "auto" else start_run
    print_result(start(config, show="quiet" if arguments.quiet else "auto"))
    return 0


def named_config(what: str | None) -> Any:
    """The configuration of a recipe or of a YAML file."""
    from bitcycle_lab.recipes import find_config

    if what is None:
        raise ValueError("give a recipe (bitcycle ls recipes) or a YAML file to train")
    return find_config(what)


def print_result(result: Any) -> None:
    """Print the metrics and the result's file."""
    best = f", best by validation {result.best[result.metric]:.2f}" if result.best else ""
    print(f"{result.metric} {result.value:.2f} at {result.eval_precision}{best}")
    print(f"{result.directory}/result.json")
