"""CPT's tables for one machine: on digits, on CIFAR-10 and on WikiText-2.

A small study has the methods of its table. Its values are not the published ones: another network,
other data, a run of seconds or minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bitcycle.recipes import recipe
from bitcycle.recipes.small import PREFIX
from bitcycle.study.catalogue import tables
from bitcycle.study.catalogue.parts import from_recipes, group, small_study
from bitcycle.study.study import STUDIES, Method, Study

BASELINE = "static 8/8"
IMAGES = "on digits one of the 360 test images is 0.28 points"
DIGITS = f"{IMAGES}; cycles are 8 in 240 steps"


def on_digits(study: Study, prefix: str = PREFIX) -> Iterator[Method]:
    """The small twins of a study's runs of one network."""
    for method in study.methods:
        if not method.config.name.startswith(prefix):
            continue
        config = recipe(f"digits-{method.config.name.removeprefix(prefix)}")
        within = method.group.removeprefix(group(method.config))
        yield replace(
            method, config=config, group=f"{group(config)}{within}", place=None, published=()
        )


@STUDIES.register("table1-small")
def table1_small() -> Study:
    """Learning rate and precision of the first half, on digits."""
    return small_study(
        "table1-small",
        "Table 1 on digits: the bits of the first half at several learning rates.",
        on_digits(tables.table1()),
        baseline="float32",
        notes=(IMAGES, *tables.table1().notes),
    )


@STUDIES.register("table2-small")
def table2_small() -> Study:
    """Quantizers and CPT, on digits and CIFAR-10."""
    runs = ("dorefa-8-8", "wageubn-8-8", "static-8-8", "cpt-3-8-8",
            "dorefa-6-6", "wageubn-6-6", "static-6-6", "cpt-3-6-6")  # fmt: skip
    cifar10 = from_recipes(*(f"cifar10-resnet8-{run}-small" for run in runs))
    return small_study(
        "table2-small",
        "Table 2 on digits and CIFAR-10: CPT against static bits of three quantizers.",
        [*on_digits(tables.table2()), *cifar10],
        baseline=BASELINE,
        notes=(DIGITS, CIFAR10),
    )


CIFAR10 = (
    "CIFAR-10: 512 steps on 10,000 fixed training images, all 10,000 test images, 8 cycles: "
    "3 to 4 minutes a run on one core"
)


@STUDIES.register("table3-small")
def table3_small() -> Study:
    """ImageNet's ranges, on digits."""
    runs = ("static-8-8", "cpt-4-8-8", "static-6-6", "cpt-4-6-6")
    return small_study(
        "table3-small",
        "Table 3's bits on digits: CPT from 4 bits against static bits.",
        from_recipes(*(f"digits-{run}" for run in runs)),
        baseline=BASELINE,
        notes=(DIGITS, "stem and shortcuts are quantized here, in ImageNet's networks not"),
    )


@STUDIES.register("table4-small")
def table4_small() -> Study:
    """Up to full precision, on digits."""
    return small_study(
        "table4-small",
        "Table 4 on digits: CPT between 8 bits and full precision against float32.",
        from_recipes("digits-float32", "digits-cpt-8-32"),
        baseline="float32",
        notes=(DIGITS,),
    )


@STUDIES.register("table5-small")
def table5_small() -> Study:
    """Language models, on WikiText-2."""
    lstm = ("static-8-8", "cpt-5-8-8", "static-6-8", "cpt-5-6-8")
    transformer = ("static-8-8", "cpt-4-8-8", "static-6-8", "cpt-4-6-8")
    names = [f"wikitext2-lstm-{run}-small" for run in lstm]
    names += [f"wikitext2-transformer-{run}-small" for run in transformer]
    return small_study(
        "table5-small",
        "Table 5 on WikiText-2: CPT against static bits, a small LSTM and a small Transformer.",
        from_recipes(*names),
        baseline=BASELINE,
        notes=(WIKITEXT2,),
    )


WIKITEXT2 = (
    "WikiText-2 with the 5,000 most frequent words, 13 % of the text is <unk>: perplexities are "
    "lower than those of all 33,278; a sixth of an epoch (LSTM) or a fifth (Transformer)"
)


@STUDIES.register("table6-small")
def table6_small() -> Study:
    """Shapes of the cycle, on digits."""
    return small_study(
        "table6-small",
        "Table 6 on digits: cosine cycles against triangles and cosine annealing.",
        on_digits(tables.table6()),
        baseline="cosine",
        notes=(DIGITS,),
    )


@STUDIES.register("table7-small")
def table7_small() -> Study:
    """Late starts, on digits."""
    return small_study(
        "table7-small",
        "Table 7 on digits: CPT that starts late, at the lowest bits until then.",
        on_digits(tables.table7()),
        baseline="from epoch 0",
        notes=(DIGITS, "epochs are of 160 for the whole run; 160 is never, evaluated at 3 bits"),
    )


@STUDIES.register("table8-small")
def table8_small() -> Study:
    """Cycled gradients, on digits."""
    return small_study(
        "table8-small",
        "Table 8 on digits: forward static at 6 bits, the bits of errors cycled.",
        on_digits(tables.table8()),
        baseline="static 6/6",
        notes=(DIGITS, *tables.table8().notes),
    )
