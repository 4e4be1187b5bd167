"""`bitcycle landscape RUN [RUN ...]`: the loss around the weights of runs, drawn and in numbers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitcycle.extras import MissingExtraError
from bitcycle_lab.train.progress import Bar, make_reporter

if TYPE_CHECKING:
    from bitcycle_lab.landscape import Landscape

_DESCRIPTION = """\
Moves the weights of runs along two random, filter-normalized directions, the same for all
of them, and evaluates the loss on a grid: contours side by side, and how sharp each minimum is.
Repeat an interrupted command to compute the rest."""
_EXAMPLES = """examples:
  bitcycle landscape runs/digits-cpt-3-8-8-seed0
  bitcycle landscape runs/static-seed0 runs/cpt-seed0 --grid 51 --samples all
  bitcycle landscape runs/cpt-seed0 --precision full --output float32-landscape

Any key of the configuration that may differ between machines can follow, such as --data.root or
--threads.
"""
_OPTIONS = (  # of `run_landscape`, as the command has them
    "grid", "extent", "seed", "precision", "ranges", "samples", "checkpoint", "overrides",
    "replace",
)  # fmt: skip


def register(subparsers: Any) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "landscape", help="draw the loss around the weights of runs, and measure its sharpness",
        description=_DESCRIPTION, epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("runs", nargs="+", metavar="RUN", help="the folder of a run")
    add("--grid", type=int, default=25, metavar="N", help="N x N points, N odd (default 25)")
    add("--samples", type=number_or_all, default=1000, metavar="N",
        help="the first N of the training data, un-augmented, or all (default 1000)")  # fmt: skip
    add("--precision", default="high",
        help="high (of the schedule), scheduled, full (float32) or bits such as w8a8")  # fmt: skip
    add("--ranges", choices=("batch", "observed"), default="batch",
        help="of activations: each batch's own (default), or those of training")  # fmt: skip
    add("--seed", type=int, default=0, help="of the directions (default 0)")
    add("--extent", type=float, default=1.0, help="largest alpha and beta (default 1)")
    add("--checkpoint", choices=("last", "best"), default="last")
    add("--output", metavar="DIR", type=Path,
        help="for pictures and numbers (default: the folder of each run)")  # fmt: skip
    add("--replace", action="store_true", help="overwrite numbers of another grid, precision, ...")
    parser.set_defaults(run=run, takes_overrides=True)


def number_or_all(text: str) -> int | None:
    """argparse's type of --samples; None stands for all."""
    try:
        return None if text == "all" else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number or all") from None


def run(arguments: argparse.Namespace) -> int:
    """Computes every run's landscape, prints the table, draws the picture."""
    from bitcycle_lab.landscape import Landscapes, run_landscape
    from bitcycle_lab.report import plot
    from bitcycle_lab.report.files import save
    from bitcycle_lab.train.config_file import check_overrides
    from bitcycle_lab.train.run_directory import RunDirectory

    check_overrides(arguments.overrides, arguments.options)
    folders = [Path(run) for run in arguments.runs]
    names = [RunDirectory(folder).read_config().run_name for folder in folders]
    if len(set(names)) < len(names):
        names = arguments.runs
    files, picture = _outputs(folders, names, arguments.output)
    options = {name: getattr(arguments, name) for name in _OPTIONS}
    found: list[Landscape] = []
    total = len(folders) * arguments.grid**2
    with make_reporter("auto", log_file=None, title="landscape", total_steps=total) as reporter:

        def progress(done: int, points: int) -> None:
            reporter.advance(len(found) * points + done)
            if not isinstance(reporter, Bar) and done and 10 * done % points < 10:
                reporter.say(f"{names[len(found)]}: {done}/{points} points")

        for folder, name, file in zip(folders, names, files, strict=True):
            found.append(run_landscape(folder, label=name, file=file, progress=progress, **options))
    landscapes = Landscapes(tuple(found))
    print(f"\n{landscapes}\n")
    for file in files:
        print(f"numbers: {file}")
    try:
        print(f"picture: {save(plot(landscapes), picture)}")
    except MissingExtraError as error:
        print(f"picture: none, {error}")
    return 0


def _outputs(folders: list[Path], names: list[str], output: Path | None) -> tuple[list[Path], Path]:
    """The file of each run's numbers, and that of the picture."""
    if output is None:
        first = folders[0] if len(folders) == 1 else folders[0].parent
        return [folder / "landscape.json" for folder in folders], first / "landscape.png"
    output.mkdir(parents=True, exist_ok=True)
    plain = [name.strip("/").replace("/", "-") for name in names]
    return [output / f"{name}.landscape.json" for name in plain], output / "landscape.png"
