"""`bitcycle landscape RUN [RUN ...]`: the loss around the weights of runs, drawn and in numbers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitcycle.extras import MissingExtraError

if TYPE_CHECKING:
    from bitcycle.landscape.compare import PendingLandscape, PendingLandscapes
    from bitcycle.landscape.result import Landscapes

_DESCRIPTION = """\
Moves the weights of runs along two random, filter-normalized directions, the same for all
of them, and evaluates the loss on a grid: contours and surfaces side by side, and how sharp each
minimum is. An interrupted computation goes on where it stopped when the command is repeated."""
_EXAMPLES = """examples:
  bitcycle landscape runs/digits-cpt-3-8-8-seed0
  bitcycle landscape runs/static-seed0 runs/cpt-seed0 --grid 51 --samples all --jobs 4
  bitcycle landscape runs/cpt-seed0 --precision full --output float32-landscape

Any key of the configuration that may differ between machines can follow, such as --data.root.
"""


def register(subparsers: Any) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "landscape",
        help="draw the loss around the weights of runs, and say how sharp the minimum is",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="the folder of a run")
    parser.add_argument(
        "--grid", type=int, default=25, metavar="N",
        help="N x N points, N odd (default 25; published pictures have 51)",
    )  # fmt: skip
    parser.add_argument(
        "--samples", type=_samples, default=1000, metavar="N",
        help="of the training data, un-augmented, from the first on; or all (default 1000)",
    )  # fmt: skip
    parser.add_argument(
        "--precision", default="high",
        help="high (the schedule's top), scheduled, full (float32) or bits such as w8a8",
    )  # fmt: skip
    parser.add_argument(
        "--ranges", choices=("batch", "observed"), default="batch",
        help="of quantized activations: each batch's own (default), or those of training, to which "
        "activations of moved weights are clipped",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of the directions (default 0)")
    parser.add_argument(
        "--extent", type=float, default=1.0, help="the grid goes from -extent to extent (default 1)"
    )
    parser.add_argument(
        "--level", type=float, metavar="LOSS",
        help="of the area below it (default: 1 above the highest loss at a centre)",
    )  # fmt: skip
    parser.add_argument("--checkpoint", choices=("last", "best"), default="last")
    parser.add_argument(
        "--jobs", type=int, metavar="N",
        help="processes (default: one per processor, or one if it takes seconds)",
    )  # fmt: skip
    parser.add_argument(
        "--threads", type=int, metavar="N", help="of each process (default: the run's own, else 1)"
    )
    parser.add_argument(
        "--output", metavar="DIR",
        help="for pictures and numbers (default: numbers in each run's folder, the picture in that "
        "of a single run, or beside the first of several)",
    )  # fmt: skip
    parser.add_argument(
        "--replace", action="store_true", help="overwrite numbers of another grid, precision, ..."
    )
    parser.set_defaults(run=run_landscape, takes_overrides=True)


def _samples(text: str) -> int | None:
    if text == "all":
        return None
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number or all, got {text!r}") from None


def run_landscape(arguments: argparse.Namespace) -> int:
    """Looks at every run, estimates, computes, prints the table, draws the picture."""
    from dataclasses import replace

    from bitcycle.landscape import Grid, RunSurface
    from bitcycle.landscape.compare import compare
    from bitcycle.train.config_file import check_overrides

    check_overrides(arguments.overrides, arguments.options)
    names = ("precision", "ranges", "samples", "seed", "checkpoint", "threads")
    options: dict[str, Any] = {name: getattr(arguments, name) for name in names}
    runs = [
        RunSurface(directory=run, overrides=tuple(arguments.overrides), **options)
        for run in arguments.runs
    ]
    output = None if arguments.output is None else Path(arguments.output).expanduser()
    if output is not None and output.exists() and not output.is_dir():
        raise ValueError(f"--output {output} is a file; give a folder")
    grid = Grid(num=arguments.grid, extent=arguments.extent)
    todo = compare(runs, grid, output=output, jobs=arguments.jobs, replaces=arguments.replace)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
    _announce(todo)
    found = replace(_compute(todo), level=arguments.level)
    print(f"\n{found}\n")
    _explain(found)
    for item in todo.items:
        print(f"numbers: {item.target}")
    _draw(found, _picture(arguments.runs, output))
    return 0


def _announce(todo: PendingLandscapes) -> None:
    from bitcycle.train.progress import duration

    first = todo.items[0].prepared
    what = f"{len(todo.items)} runs x " if len(todo.items) > 1 else ""
    size = f"{what}{first.grid.num} x {first.grid.num} = {todo.num_points} points"
    print(f"{size}, {first.num_samples} samples each, ranges: {first.what.ranges}")
    for item in todo.items:
        print(f"  {item.prepared.label}: loss {item.prepared.center:.4f} at "
              f"{item.prepared.precision}{_unfinished(item)}")  # fmt: skip
    if todo.num_missing == 0:
        print("all points are computed already")
        return
    done = todo.num_points - todo.num_missing - len([p for p in todo.items if p.num_missing])
    kept = f"{done} are computed already; " if done > 0 else ""
    processes = "1 process" if todo.jobs == 1 else f"{todo.jobs} processes"
    print(f"{kept}about {duration(todo.seconds)} with {processes}", flush=True)


def _unfinished(item: PendingLandscape) -> str:
    from bitcycle.train.run_directory import RunDirectory

    if RunDirectory(item.prepared.what.directory).is_finished:
        return ""
    return (
        f"; the run is not finished, these are the weights of step {item.prepared.origin['step']}"
    )


def _compute(todo: PendingLandscapes) -> Landscapes:
    from bitcycle.train.progress import Lines, make_reporter

    total = todo.num_points
    with make_reporter("auto", log_file=None, title="landscape", total_steps=total) as reporter:
        shown = -1

        def advance(done: int) -> None:
            nonlocal shown
            reporter.advance(done)
            tenth = 10 * done // total
            if isinstance(reporter, Lines) and todo.num_missing and tenth > shown:
                shown = tenth
                reporter.say(f"{done}/{total} points")

        return todo.run(advance)


def _explain(found: Landscapes) -> None:
    side = 2 * found.items[0].alphas[-1]
    print("rise        mean of loss - loss(0, 0) on the circle of radius r")
    print(f"area        where the loss is at most {found.common_level:.4g}, of {side * side:g}; a "
          "wider minimum has less rise, more area")  # fmt: skip
    if any(item.num_nonfinite for item in found.items):
        print("not finite  losses that are NaN or infinite; a circle that meets one rises by inf")
    if not found.share_directions:
        print("directions  are not the same: the runs have different models")
    print()


def _picture(runs: list[str], output: Path | None) -> Path:
    if output is not None:
        return output / "landscape.png"
    first = Path(runs[0])
    return (first if len(runs) == 1 else first.parent) / "landscape.png"


def _draw(found: Landscapes, path: Path) -> None:
    from bitcycle.report import plot
    from bitcycle.report.files import save

    try:
        print(f"picture: {save(plot(found), path)}")
    except MissingExtraError as error:
        print(f"picture: none, {error}")
