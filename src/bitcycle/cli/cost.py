"""`bitcycle cost resnet74 --forward CR:3-8:32 --backward 8`: the BitOPs of a run."""

from __future__ import annotations

import argparse
import json
from typing import Any


def add_counting_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the model, skipped layers, and the convention."""
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


_ROLES = ("forward", "backward", "weight", "act", "error", "grad")
_EXAMPLES = """examples:
  bitcycle cost resnet74 --forward CR:3-8:32 --backward 8
  bitcycle cost imagenet_resnet50 --forward 8 --backward 8 --input-shape 3x160x160 --by-layer
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
        "--backward",
        metavar="SCHEDULE",
        help="bits of errors (gradients of layer outputs) and weight gradients: 8, fp32 (default: "
        "the recipe's; 8 up to 8 bits forward, fp32 with fp32; formats need one)",
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
    add_counting_options(parser)
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
    """Print the cost, or the comparison with the paper."""
    if arguments.paper:
        return _run_paper(arguments)
    from bitcycle.analysis.cost import estimate_cost
    from bitcycle.analysis.training_spec import find_spec, parse_options, parse_shape

    if arguments.what is None:
        raise ValueError("give a model (bitcycle ls models) or a recipe, or --paper")
    roles = {role: getattr(arguments, role) for role in _ROLES}
    shape = arguments.input_shape
    spec = find_spec(
        arguments.what,
        roles={role: text for role, text in roles.items() if text is not None},
        options=parse_options(arguments.option),
        skip=arguments.skip,
        quantizer=arguments.quantizer,
        total_steps=arguments.total_steps,
        batch_size=arguments.batch_size,
        input_shape=None if shape is None else parse_shape(shape),
    )
    estimate = estimate_cost(
        spec, convention=arguments.convention, measures_memory=arguments.memory
    )
    if arguments.json:
        print(json.dumps(estimate.to_dict(), indent=2))
    else:
        print(estimate.text(by_layer=arguments.by_layer))
    return 0


def _run_paper(arguments: argparse.Namespace) -> int:
    from bitcycle.analysis.cost import compare_with_paper

    if arguments.what is not None:
        raise ValueError(f"--paper takes no model: drop {arguments.what!r} or --paper")
    comparison = compare_with_paper()
    print(json.dumps(comparison.to_dict(), indent=2) if arguments.json else comparison)
    return 0
