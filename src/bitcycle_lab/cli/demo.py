"""`bitcycle demo`: a small study on real data, in a minute and without a download."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from bitcycle.extras import MissingExtraError, check_installed

NEEDED = ("accelerate", "jsonargparse", "safetensors", "scipy", "sklearn", "tensorboard", "yaml")
DRAWING = ("jinja2", "matplotlib")


def register(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "demo", help="accuracy, cost and time of float32, 8 bits and CPT on digits, in a minute"
    )
    parser.add_argument(
        "--output",
        default="runs/demo",
        metavar="DIR",
        help="folder of the runs (default: runs/demo)",
    )
    parser.add_argument("--seeds", type=int, default=3, help="runs per method (default 3)")
    parser.add_argument(
        "--jobs", type=int, default=2, help="parallel runs, one thread each (default 2)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Train, time, print the table and the next commands, draw the figure and the page."""
    from bitcycle_lab.study.demo import run_demo

    output = Path(arguments.output)
    if output.exists() and not output.is_dir():
        raise ValueError(f"--output {output} is a file; give a folder")
    check_installed(NEEDED, extra="train", purpose="training runs")  # before a dozen fail
    is_drawn = True
    try:
        check_installed(DRAWING, extra="report", purpose="a picture and a page")
    except MissingExtraError as error:
        is_drawn = False
        print(f"no page: {error}\n")
    result = run_demo(
        output,
        num_seeds=arguments.seeds,
        num_jobs=arguments.jobs,
        say=lambda line: print(line, flush=True),
    )
    print(f"\n{result}\n")  # the table: DemoResult.__str__
    print(
        "next:    bitcycle train digits-wide-cpt-4-8-8 --seed 7  one of these runs, with progress"
    )
    print("         bitcycle schedule CR:4-8:4 --steps 80          the bits it trains with")
    print("         bitcycle bench --workload resnet20-w64         the time of another network")
    print("         bitcycle study ls                              the papers' tables by name")
    print(f"\nruns:    {output}")
    if is_drawn:
        _draw(result, output)
    return 0


def _draw(result: Any, output: Path) -> None:
    from bitcycle_lab.report import plot
    from bitcycle_lab.report.figures.demo import draw_times
    from bitcycle_lab.report.files import save
    from bitcycle_lab.report.page import write_page
    from bitcycle_lab.report.page.sections import WIDTH, Card

    print(f"picture: {save(plot(result), output / 'demo.png')}")
    note = f"Time of {result.conditions}."
    draw = partial(draw_times, result, WIDTH)
    card = Card("Time of a step", draw, "time of a step of each method", note)
    print(f"page:    {write_page(result.study, output / 'demo.html', cards=[card])}")
