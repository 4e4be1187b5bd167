"""`bitcycle plan RECIPE --saving 40%`: list the schedules that meet a BitOPs budget."""

from __future__ import annotations

import argparse
import json
import shlex
from typing import Any

from bitcycle.cli.cost import add_counting_options

_DESCRIPTION = """\
Rank the published precision schedules that meet a budget and recommend one: the saving, mean bits,
final bits, the results in the CPT paper's tables or in your own runs, and the text to train with.
Costs are those of the whole run and follow from the model's shapes; no data is read."""
_EXAMPLES = """examples:
  bitcycle plan cifar100-resnet74-cpt-3-8-8 --saving 40%
  bitcycle plan cifar100-resnet74-static-8-8 --saving 40% --range-test range-test.json
  bitcycle plan digits-cpt-3-8-8 --saving 30% --runs runs
  bitcycle plan transformer_lm --ladder nvfp4,bf16 --backward nvfp4 --saving 60%
  bitcycle plan resnet20 --skip fc --low 3 --high 8 --saving 0.3 --cycles 4,8 --picture plan.png
"""


def register(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "plan",
        help="rank the precision schedules that meet a BitOPs budget",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "what",
        metavar="MODEL|RECIPE|FILE",
        help="a name of `ls models` or `ls recipes`, or a YAML file",
    )
    budget = parser.add_mutually_exclusive_group(required=True)
    budget.add_argument(
        "--saving", help="share of the static baseline's BitOPs to save: 40%% or 0.4"
    )
    budget.add_argument("--bitops", type=float, help="the most BitOPs to spend, such as 1.2e15")
    parser.add_argument("--low", type=int, help="fewest forward bits (default: the recipe's)")
    parser.add_argument("--high", type=int, help="most forward bits (default: the recipe's)")
    parser.add_argument(
        "--ladder",
        type=_names,
        default=[],
        metavar="FORMAT,FORMAT",
        help="formats or bits from the fewest to the most, such as mxfp4,mxfp8,bf16, in place of "
        "--low and --high",
    )
    parser.add_argument(
        "--range-test",
        metavar="FILE",
        help="take the bounds from the JSON of `bitcycle range-test`",
    )
    parser.add_argument(
        "--runs", metavar="DIR", help="also rank by the finished runs of this recipe below DIR"
    )
    parser.add_argument(
        "--backward",
        metavar="SCHEDULE",
        help="bits of errors, the gradients of layer outputs: 8, CR:6-8:8, fp32 (default: the "
        "recipe's, or 8 up to 8 bits forward)",
    )
    parser.add_argument(
        "--cycles",
        type=_numbers,
        metavar="N,N",
        help="numbers of cycles, such as 2,4,8 (default: 2,8,32)",
    )
    parser.add_argument(
        "--tops", type=_numbers, default=[], metavar="N,N", help="more upper bounds to try"
    )
    parser.add_argument(
        "--total-steps",
        "--steps",
        type=int,
        help="optimizer steps (default: the recipe's, or 64000)",
    )
    parser.add_argument(
        "--batch-size", type=int, help="samples per step (default: the recipe's, or 128)"
    )
    add_counting_options(parser)
    parser.add_argument("--limit", type=int, help="lines to print (default 20; JSON: all)")
    parser.add_argument(
        "--picture", metavar="FILE", help="also draw the first schedules to this .png file"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers such as 2,4,8, got {text!r}") from None


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def run(arguments: argparse.Namespace) -> int:
    """Count the cost of the candidates, draw the figure, print the list."""
    from bitcycle.analysis.plan import plan_by_name
    from bitcycle.analysis.training_spec import parse_options
    from bitcycle.cost.planner import LIMIT, parse_saving
    from bitcycle.models import MODELS
    from bitcycle.recipes import list_recipes
    from bitcycle.report.files import check_path, save
    from bitcycle.study.study import STUDIES

    limit = arguments.limit
    if limit is not None and limit < 1:
        raise ValueError(f"--limit must be at least 1, got {limit}")
    target = None if arguments.picture is None else check_path(arguments.picture)
    names = ("bitops", "low", "high", "ladder", "range_test", "backward", "cycles", "tops", "skip",
             "quantizer", "total_steps", "batch_size", "convention", "runs")  # fmt: skip
    names_of_recipes = {info.name for info in list_recipes()}
    if arguments.what in STUDIES and arguments.what not in names_of_recipes:
        raise ValueError(f"{arguments.what} is a study; give a recipe or a model to plan")
    found = plan_by_name(
        arguments.what,
        saving=None if arguments.saving is None else parse_saving(arguments.saving),
        options=parse_options(arguments.option),
        **{name: getattr(arguments, name) for name in names},
    )
    if target is not None:
        from bitcycle.report import plot

        save(plot(found, **({} if limit is None else {"limit": limit})), target)
    if arguments.json:
        print(json.dumps({"what": arguments.what, **found.to_dict(limit)}, indent=2))
        return 0
    print(found.text(limit or LIMIT))
    if arguments.what not in MODELS:
        first, _ = found.lines()[0]
        forward, backward = shlex.quote(first.forward), shlex.quote(found.backward)
        quantizer = ""
        if arguments.quantizer is not None:
            quantizer = f" \\\n    --precision.quantizer {shlex.quote(arguments.quantizer)}"
        print(
            f"\nto train it:\n  bitcycle train {arguments.what} \\\n"
            f"    --precision.forward {forward} --precision.backward {backward}{quantizer}"
        )
    if target is not None:
        print(f"wrote {target}")
    return 0
