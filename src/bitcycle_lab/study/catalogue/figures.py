"""Figures 1, 2 and 4 to 9 of CPT: the runs behind them, and each for one machine on digits.

Fig. 3 is a drawing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bitcycle_lab.recipes import recipe
from bitcycle_lab.recipes.base import FEW_CYCLES, with_bits
from bitcycle_lab.study.catalogue.methods import (
    BASELINE,
    DIGITS,
    group,
    method,
    methods_of,
    small_study,
    small_twin,
    with_published,
)
from bitcycle_lab.study.study import STUDIES, Method, Study

THREE = (("static", "8/8"), ("progressive", "3-8/8"), ("cpt", "3-8/8"))
ABLATED = ("resnet38", "resnet74")  # the networks of the paper's other ablations
LANDSCAPE = (
    "this table has the final values; how wide the minima are, of which the paper says that cycles "
    "make them wider, is drawn and measured from finished runs: bitcycle landscape RUN_FOLDER "
    "[RUN_FOLDER ...], with one seed of directions for all"
)


def cells(network: str, *cells: tuple[str, str]) -> tuple[Method, ...]:
    """Methods at the bits of cells, for a network on CIFAR-100."""
    base = recipe(f"cifar100-{network}")
    return tuple(method(with_bits(base, name, cell)) for name, cell in cells)


@STUDIES.register("fig1")
def fig1() -> Study:
    """Static, progressive, cyclic."""
    return Study(
        name="fig1",
        description="CPT Fig. 1: the test accuracy over training, static, progressive and cyclic.",
        methods=with_published(cells("resnet74", *THREE), "CPT Table 2"),
        baseline=BASELINE,
        notes=(
            "the curves are the evaluations of the runs; published are only the final values that "
            "Table 2 has too",
            "progressive: equal stages from 3 to 8 bits over the first half",
        ),
    )


@STUDIES.register("fig1-small")
def fig1_small() -> Study:
    """Static, progressive, cyclic, on digits."""
    return small_twin(
        fig1(), "Fig. 1 on digits: static, progressive and cyclic precision over training."
    )


@STUDIES.register("fig2")
def fig2() -> Study:
    """Loss landscapes of schedules: those of Fig. 1 on the network of Fig. 6."""
    return Study(
        name="fig2",
        description="CPT Fig. 2: the loss landscapes that precision schedules end in.",
        methods=cells("resnet110", *THREE),
        seeds=(0,),
        baseline=BASELINE,
        notes=("which runs CPT Fig. 2 draws is unpublished, these are ours", LANDSCAPE),
    )


@STUDIES.register("fig2-small")
def fig2_small() -> Study:
    """Loss landscapes of schedules, on digits."""
    return small_twin(
        fig2(),
        "Fig. 2 on digits: the loss landscapes that precision schedules end in.",
        network="resnet110",
        notes=(DIGITS, LANDSCAPE),
    )


@STUDIES.register("fig4")
def fig4() -> Study:
    """The precision range test."""
    methods = [
        each
        for network, cell in (("resnet152", "3-8/8"), ("mobilenetv2", "4-8/8"))
        for each in with_range_test(cells(network, ("static", "8/8"), ("cpt", cell)))
    ]
    return Study(
        name="fig4",
        description="CPT Fig. 4: is the range test's lower bound as good as the published one?",
        methods=tuple(methods),
        baseline=BASELINE,
        notes=(
            "the picture is drawn by: bitcycle range-test RECIPE --criterion paper",
            "published bounds: 3 bits for deep ResNets, 4 for MobileNetV2; the test's lengths and "
            "threshold are unpublished",
            "the networks are our choice: a deep ResNet and MobileNetV2",
        ),
    )


def with_range_test(
    methods: tuple[Method, ...], *, steps_per_precision: int | None = None
) -> Iterator[Method]:
    """The methods, and the last one again, its lower end found by a range test in the run.

    steps_per_precision: None shares a cycle among the precisions.
    """
    config = methods[-1].config
    forward = f"CR:auto-{str(config.precision.forward).partition('-')[2]}"
    found = replace(
        config,
        name=f"{config.name.partition('-cpt-')[0]}-cpt-auto-8-8",
        precision=replace(config.precision, forward=forward),
        range_test=replace(
            config.range_test, criterion="paper", steps_per_precision=steps_per_precision
        ),
    )
    yield from methods
    yield Method(label="CPT auto-8/8", config=found, group=group(found))


@STUDIES.register("fig4-small")
def fig4_small() -> Study:
    """The precision range test, on digits."""
    runs = methods_of("digits-static-8-8", "digits-cpt-3-8-8")
    return small_study(
        "fig4-small",
        "Fig. 4 on digits: is the range test's lower bound as good as 3 bits?",
        with_range_test(runs, steps_per_precision=50),
        notes=(
            DIGITS,
            "the test takes 50 steps a precision, longer than a cycle of 30; its cost is counted",
            "the picture is drawn by: bitcycle range-test digits-cpt-3-8-8 "
            "--criterion paper --steps-per-precision 50",
        ),
    )


@STUDIES.register("fig5")
def fig5() -> Study:
    """Accuracy against cost."""
    statics = [("static", cell) for cell in ("8/8", "6/6", "4/6")]
    deep = [*statics, *(("cpt", cell) for cell in ("3-8/8", "3-6/6", "3-4/6"))]
    mobile = [*statics[:2], ("cpt", "4-8/8"), ("cpt", "4-6/6")]
    networks = dict.fromkeys(("resnet38", "resnet74", "resnet110", "resnet152", "resnet164"), deep)
    networks["mobilenetv2"] = mobile
    methods = [each for network, bits in networks.items() for each in cells(network, *bits)]
    return Study(
        name="fig5",
        description="CPT Fig. 5: accuracy against training cost, static and cyclic, six networks.",
        methods=with_published(methods, "CPT Fig. 5", "CPT Table 2"),
        baseline=BASELINE,
        notes=(
            "costs of networks that no table has are read off CPT Fig. 5",
            "CPT Fig. 5 marks MobileNetV2's lower bound 3 where the tables say 4",
            "published accuracies are those that Table 2 has too",
        ),
    )


@STUDIES.register("fig5-small")
def fig5_small() -> Study:
    """Accuracy against cost, on digits."""
    return small_twin(
        fig5(), "Fig. 5 on digits: accuracy against training cost, static and cyclic."
    )


@STUDIES.register("fig6")
def fig6() -> Study:
    """Loss landscapes, static and cyclic."""
    return Study(
        name="fig6",
        description="CPT Fig. 6: the static and cyclic runs whose minima are compared.",
        methods=cells("resnet110", ("static", "8/8"), ("cpt", "3-8/8"), ("cpt", "4-8/8")),
        seeds=(0,),
        baseline=BASELINE,
        notes=(LANDSCAPE,),
    )


@STUDIES.register("fig6-small")
def fig6_small() -> Study:
    """Loss landscapes, static and cyclic, on digits."""
    return small_twin(
        fig6(),
        "Fig. 6 on digits: the static and cyclic runs whose minima are compared.",
        network="resnet110",
        notes=(DIGITS, LANDSCAPE),
    )


@STUDIES.register("fig7")
def fig7() -> Study:
    """Upper bounds."""
    ranges = [("cpt", f"3-{high}/8") for high in (4, 5, 6, 7, 8, 12, 16)]
    return Study(
        name="fig7",
        description="CPT Fig. 7: how much does the upper bound of the cycle matter?",
        methods=statics() + tuple(each for network in ABLATED for each in cells(network, *ranges)),
        baseline=BASELINE,
        notes=("the grid of CPT Fig. 7 is unpublished, this one is ours",),
    )


def statics() -> tuple[Method, ...]:
    """The static runs that the ablations are compared with."""
    return tuple(each for network in ABLATED for each in cells(network, ("static", "8/8")))


@STUDIES.register("fig7-small")
def fig7_small() -> Study:
    """Upper bounds, on digits."""
    return small_twin(
        fig7(), "Fig. 7 on digits: how much does the upper bound of the cycle matter?"
    )


@STUDIES.register("fig8")
def fig8() -> Study:
    """Numbers of cycles."""
    cyclic = (
        each
        for network in ABLATED
        for each in with_cycles(f"cifar100-{network}", (2, 4, 8, 16, 32, 64), usual=32)
    )
    return Study(
        name="fig8",
        description="CPT Fig. 8: how much does the number of cycles matter?",
        methods=(*statics(), *cyclic),
        baseline=BASELINE,
        notes=("the grid of CPT Fig. 8 is unpublished, this one is ours",),
    )


def with_cycles(base: str, numbers: tuple[int, ...], *, usual: int) -> Iterator[Method]:
    """CPT 3-8/8 with several numbers of cycles; the usual one is no part of the run's name."""
    for number in numbers:
        suffix = "" if number == usual else f"-n{number}"
        config = with_bits(recipe(base), "cpt", "3-8/8", number, suffix=suffix)
        yield method(config, f"N = {number}")


@STUDIES.register("fig8-small")
def fig8_small() -> Study:
    """Numbers of cycles, on digits."""
    return small_study(
        "fig8-small",
        "Fig. 8 on digits: how much does the number of cycles matter?",
        (
            *methods_of("digits-static-8-8"),
            *with_cycles("digits", (2, 4, 8, 16, 32), usual=FEW_CYCLES),
        ),
        notes=(DIGITS,),
    )


@STUDIES.register("fig9")
def fig9() -> Study:
    """Training curves and their spread."""
    runs = (("static", "8/8"), ("cpt", "3-8/8"), ("static", "6/6"), ("cpt", "3-6/6"))
    networks = ("resnet38", "resnet74", "resnet110")
    return Study(
        name="fig9",
        description="CPT Fig. 9: training curves of static and cyclic runs, and their spread.",
        methods=tuple(each for network in networks for each in cells(network, *runs)),
        seeds=(0, 1, 2, 3, 4),
        baseline=BASELINE,
        notes=(
            "what Fig. 9 plots is not among the published numbers; this is the paper's claim that "
            "CPT trains with less variance, on networks of our choice",
        ),
    )


@STUDIES.register("fig9-small")
def fig9_small() -> Study:
    """Training curves and their spread, on digits."""
    full = fig9()
    return small_twin(
        full,
        "Fig. 9 on digits: do cyclic runs spread less than static ones?",
        seeds=10,
        notes=(DIGITS, *full.notes),
    )
