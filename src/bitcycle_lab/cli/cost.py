"""`bitcycle cost resnet74 --forward CR:3-8:32 --backward 8`: the BitOPs of a run."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bitcycle_lab.cost.run import RunCost
    from bitcycle_lab.cost.schedules import ScheduleComparison
    from bitcycle_lab.cost.spec import TrainingSpec


_ROLES = ("forward", "backward", "weight", "act", "error", "grad")
_EXAMPLES = """examples:
  bitcycle cost resnet74 --forward CR:3-8:32 --backward 8
  bitcycle cost imagenet_resnet50 --forward 8 --backward 8 --input-shape 3x160x160 --by-layer
  bitcycle cost resnet74 --schedules 8 6 CR:3-8:32 CR:4-8:32 --backward 8 6 --budget 70%
  bitcycle cost cifar100-resnet74-cpt-3-8-8 --convention paper
  bitcycle cost transformer_lm --forward stages:nvfp4@0.82,bf16 --backward nvfp4
  bitcycle cost --paper
"""


def register(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "cost",
        help="count the BitOPs and memory traffic of a run before training",
        description="Count the BitOPs and the operand traffic of a run by layer, before training.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "what",
        nargs="?",
        metavar="MODEL|RECIPE|FILE",
        help="a name of `ls models` or `ls recipes`, or a YAML file",
    )
    parser.add_argument(
        "--forward",
        metavar="SCHEDULE",
        help="bits of weights and activations: CR:3-8:32, 8, fp32, or formats: nvfp4, "
        "stages:nvfp4@0.82,bf16",
    )
    parser.add_argument(
        "--schedules",
        nargs="+",
        metavar="SCHEDULE",
        help="compare these in place of --forward: a row for each, and for each --backward, "
        "cheapest first",
    )
    parser.add_argument(
        "--budget",
        metavar="SHARE",
        help="with --schedules: mark the rows that cost at most this share (70%% or 0.7) of static "
        "bits at the highest listed",
    )
    parser.add_argument(
        "--backward",
        nargs="+",
        metavar="SCHEDULE",
        help="bits of errors (gradients of layer outputs) and weight gradients: 8, fp32 (default: "
        "the recipe's; 8 up to 8 bits forward, fp32 with fp32; formats need one); several with "
        "--schedules",
    )
    parser.add_argument(
        "--backward-operands",
        choices=("forward", "backward"),
        help="which bits weights and activations have in the backward products: forward's (the "
        "default, unless the recipe says otherwise), or with formats backward's",
    )
    for role in ("weight", "act", "error", "grad"):
        parser.add_argument(f"--{role}", metavar="SCHEDULE", help=f"bits of the role {role} alone")
    parser.add_argument(
        "--total-steps", "--steps", type=int, metavar="N",
        help="optimizer steps (default: the recipe's; 64000 for a model)",
    )  # fmt: skip
    parser.add_argument(
        "--batch-size", type=int, metavar="N",
        help="samples per step (default: the recipe's; 128 for a model)",
    )  # fmt: skip
    parser.add_argument("--input-shape", metavar="SHAPE", help="of one sample, such as 3x224x224")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="option of the model, such as num_classes=100; may be repeated",
    )
    parser.add_argument("--skip", nargs="+", metavar="PATTERN", help="layers that stay float32")
    parser.add_argument(
        "--quantizer",
        metavar="NAME",
        help="a name of `ls quantizers` (default: the recipe's; for a model the one that its "
        "formats need, or sbm)",
    )
    parser.add_argument(
        "--convention",
        default="exact",
        metavar="NAME",
        help="exact (default), or paper or followup: as published costs were counted",
    )
    parser.add_argument("--by-layer", action="store_true", help="print a row per layer")
    parser.add_argument(
        "--memory", action="store_true", help="also measure the bytes saved for the backward pass"
    )
    parser.add_argument(
        "--paper",
        action="store_true",
        help="compare the published costs of the CPT paper with bitcycle's counts",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the cost, the costs of several schedules, or the comparison with the paper."""
    _check_options(arguments)
    result: Any
    if arguments.paper:
        from bitcycle_lab.cost.paper import compare_with_paper

        result = compare_with_paper()
    elif arguments.schedules:
        result = _compare_schedules(arguments)
    else:
        result = _estimate_cost(arguments)
    if arguments.json:
        print(json.dumps(result.to_dict(), indent=2))
    else:
        print(result.text(by_layer=True) if arguments.by_layer else result)
    return 0


def _check_options(arguments: argparse.Namespace) -> None:
    """Raise ValueError for options that exclude each other."""
    given = [name for name, value in vars(arguments).items() if value]
    if arguments.paper:
        neutral = {"paper", "json", "debug", "run", "options", "convention", "plugins"}
        if set(given) - neutral or arguments.convention != "exact":
            raise ValueError("--paper takes no other option but --json")
    elif arguments.what is None:
        raise ValueError(
            "give a model (bitcycle ls models) or a recipe before the options, or --paper"
        )
    elif arguments.schedules:
        for name in ("forward", "weight", "act", "error", "grad", "by_layer", "memory"):
            if name in given:
                raise ValueError(f"--{name.replace('_', '-')} and --schedules exclude each other")
    elif arguments.budget:
        raise ValueError("--budget needs --schedules")
    elif len(arguments.backward or ()) > 1:
        raise ValueError(f"--backward {' '.join(arguments.backward)}: several need --schedules")


def _estimate_cost(arguments: argparse.Namespace) -> RunCost:
    from bitcycle_lab.cost.run import estimate_cost

    roles = {role: getattr(arguments, role) for role in _ROLES}
    if arguments.backward:
        (roles["backward"],) = arguments.backward
    spec = _find_spec(arguments, {role: text for role, text in roles.items() if text is not None})
    return estimate_cost(spec, convention=arguments.convention, measures_memory=arguments.memory)


def _compare_schedules(arguments: argparse.Namespace) -> ScheduleComparison:
    from bitcycle.schedules import parse_schedule
    from bitcycle_lab.cost.schedules import compare_schedules, parse_share

    budget = None if arguments.budget is None else parse_share(arguments.budget)
    # as schedules write themselves, so that two spellings of one schedule are one row
    forwards = dict.fromkeys(str(parse_schedule(text)) for text in arguments.schedules)
    backwards = dict.fromkeys(str(parse_schedule(text)) for text in arguments.backward or ())
    by_forward = [{"forward": text, "weight": "inherit", "act": "inherit"} for text in forwards]
    by_backward = [{"backward": text, "error": "inherit", "grad": "inherit"} for text in backwards]
    specs = [
        _find_spec(arguments, {**forward, **backward})
        for forward in by_forward
        for backward in by_backward or [{}]
    ]
    return compare_schedules(specs, convention=arguments.convention, budget=budget)


def _find_spec(arguments: argparse.Namespace, roles: dict[str, str]) -> TrainingSpec:
    from bitcycle_lab.cost.spec import find_spec, parse_options, parse_shape

    if arguments.backward_operands is not None:
        roles = {**roles, "backward_operands": arguments.backward_operands}
    shape = arguments.input_shape
    return find_spec(
        arguments.what,
        roles=roles,
        options=parse_options(arguments.option),
        skip=arguments.skip,
        quantizer=arguments.quantizer,
        total_steps=arguments.total_steps,
        batch_size=arguments.batch_size,
        input_shape=None if shape is None else parse_shape(shape),
    )
