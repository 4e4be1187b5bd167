"""`bitcycle train` and `bitcycle resume`: runs as commands."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

_OVERRIDES = (
    "Any key of the configuration can follow as an override, such as --optimizer.lr 0.05 "
    "--seed 3 --data.root ~/data; --print-config shows them all. Many processes: "
    "torchrun --nproc-per-node 2 -m bitcycle train ..."
)


def register(subparsers: Any) -> None:
    """Adds the commands."""
    train = subparsers.add_parser(
        "train", help="train a recipe or a configuration file", epilog=_OVERRIDES
    )
    train.add_argument(
        "what", nargs="?", metavar="RECIPE|FILE", help="a name of `ls recipes`, or a YAML file"
    )
    train.add_argument(
        "--resume", choices=("auto",), help="go on with the run if its folder exists already"
    )
    train.add_argument("--print-config", action="store_true", help="print the whole YAML and stop")
    _add_quiet(train)
    train.set_defaults(run=run_train, takes_overrides=True)
    resume = subparsers.add_parser("resume", help="go on with an interrupted run")
    resume.add_argument("directory", help="the folder of the run")
    _add_quiet(resume)
    resume.set_defaults(run=run_resume)


def _add_quiet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quiet", action="store_true", help="print the result only")


def run_train(arguments: argparse.Namespace) -> int:
    """Trains, or goes on when asked to."""
    from bitcycle.train.config_file import check_overrides, override, to_yaml
    from bitcycle.train.run import resume_or_run, run

    check_overrides(arguments.overrides)
    config = override(find_config(arguments.what), arguments.overrides)
    if arguments.print_config:
        print(to_yaml(config), end="")
        return 0
    start = resume_or_run if arguments.resume == "auto" else run
    _tell(start(config, show="quiet" if arguments.quiet else "auto"))
    _leave_process_group()
    return 0


def find_config(what: str | None) -> Any:
    """The configuration of a recipe's name or of a YAML file."""
    from bitcycle.recipes import recipe
    from bitcycle.train.config_file import read_config

    if what is None:
        raise ValueError("give a recipe (bitcycle ls recipes) or a YAML file to train")
    path = Path(what).expanduser()
    if path.is_file():
        return read_config(path)
    if path.suffix in (".yaml", ".yml"):
        raise ValueError(f"there is no file {what}; give a YAML file or a recipe's name")
    return recipe(what)


def run_resume(arguments: argparse.Namespace) -> int:
    """Goes on from the newest checkpoint."""
    from bitcycle.train.run import resume

    _tell(resume(arguments.directory, show="quiet" if arguments.quiet else "auto"))
    _leave_process_group()
    return 0


def _tell(result: Any) -> None:
    best = f", best by validation {result.best[result.metric]:.2f}" if result.best else ""
    print(f"{result.metric} {result.value:.2f} at {result.eval_precision}{best}")
    print(f"{result.directory}/result.json")


def _leave_process_group() -> None:
    """Under torchrun: a gloo group that is open at exit can abort the interpreter."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
