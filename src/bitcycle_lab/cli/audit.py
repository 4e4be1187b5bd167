"""`bitcycle audit RECIPE`: what of a model is quantized, and why the rest is not."""

from __future__ import annotations

import argparse
from typing import Any

from bitcycle_lab.cli.train import add_what, named_config

_EXAMPLES = """examples:
  bitcycle audit digits-cpt-3-8-8
  bitcycle audit cifar100-resnet74-cpt-3-8-8 --verbose
  bitcycle audit wikitext2-transformer-cpt-4-8-8-small --precision.quantizer absmax

Add any key of the configuration as an override, as for `bitcycle train`. No data are read.
"""


def register(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "audit",
        help="list what of a recipe's model is quantized, and why the rest is not",
        description="Build and convert the model of a recipe as its run does, and list everything\n"
        "that multiplies, with its bits at step 0. The model runs once on made-up inputs, so\n"
        "products and activations that no module owns are found too.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_what(parser)
    parser.add_argument(
        "--verbose", action="store_true", help="add quantizers, kernels, ranges and reasons"
    )
    parser.set_defaults(run=run, takes_overrides=True)


def run(arguments: argparse.Namespace) -> int:
    """Print the audit."""
    from bitcycle.audit import audit
    from bitcycle_lab.cost.spec import build_at_start
    from bitcycle_lab.train.config_file import check_overrides, override

    check_overrides(arguments.overrides, arguments.options)
    config = override(named_config(arguments.what), arguments.overrides)
    model, inputs = build_at_start(config)
    print(audit(model, inputs, verbose=arguments.verbose))
    return 0
