"""Figures 1, 2 and 4 to 9 of CPT at full size: the runs behind them. Fig. 3 is a drawing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from bitcycle.recipes import recipe
from bitcycle.study.catalogue.parts import (
    from_recipe,
    group,
    notes_of,
    of_family,
    with_published,
)
from bitcycle.study.study import STUDIES, Method, Study
from bitcycle.train.config import RunConfig

BASELINE = "static 8/8"
LANDSCAPE = (
    "this table has the final values; how wide the minima are, of which the paper says that cycles "
    "make them wider, is drawn and measured from finished runs: bitcycle landscape RUN_FOLDER "
    "[RUN_FOLDER ...], with one seed of directions for all"
)


def number_of_cycles(config: RunConfig) -> str:
    """Fig. 8's label."""
    return f"N = {str(config.precision.forward).rpartition(':')[2]}"


def with_static(methods: Iterable[Method], *names: str) -> tuple[Method, ...]:
    """The methods after the static runs that they are compared with."""
    return (*(from_recipe(name) for name in names), *methods)


def found_low(name: str, steps_per_precision: int | None = None) -> Method:
    """A cyclic recipe whose lower end is found by a precision range test in the run.

    steps_per_precision: None divides a cycle by the number of precisions.
    """
    config = recipe(name)
    forward = f"CR:auto-{str(config.precision.forward).partition('-')[2]}"
    found = replace(
        config,
        name=f"{name.partition('-cpt-')[0]}-cpt-auto-8-8",
        precision=replace(config.precision, forward=forward),
        range_test=replace(config.range_test, steps_per_precision=steps_per_precision),
    )
    return Method(label="CPT auto-8/8", config=found, group=group(found))


@STUDIES.register("fig1")
def fig1() -> Study:
    """Static, progressive, cyclic."""
    return Study(
        name="fig1",
        description="CPT Fig. 1: the test accuracy over training, static, progressive and cyclic.",
        methods=with_published(of_family("cpt-figure1"), "CPT Table 2"),
        baseline=BASELINE,
        notes=(
            "the curves are the evaluations of the runs; published are only the final values that "
            "Table 2 has too",
            "progressive: equal stages from 3 to 8 bits over the first half",
        ),
    )


@STUDIES.register("fig2")
def fig2() -> Study:
    """Loss landscapes of schedules."""
    return Study(
        name="fig2",
        description="CPT Fig. 2: the loss landscapes that precision schedules end in.",
        methods=of_family("cpt-figure2"),
        seeds=(0,),
        baseline=BASELINE,
        notes=(*notes_of("cpt-figure2"), LANDSCAPE),
    )


@STUDIES.register("fig4")
def fig4() -> Study:
    """The precision range test."""
    runs = ("cifar100-resnet152-cpt-3-8-8", "cifar100-mobilenetv2-cpt-4-8-8")
    methods = [
        method
        for name in runs
        for method in (
            from_recipe(f"{name.partition('-cpt-')[0]}-static-8-8"),
            from_recipe(name),
            found_low(name),
        )
    ]
    return Study(
        name="fig4",
        description="CPT Fig. 4: is the range test's lower bound as good as the published one?",
        methods=tuple(methods),
        baseline=BASELINE,
        notes=(
            "the picture is drawn by: bitcycle range-test RECIPE",
            "published bounds: 3 bits for deep ResNets, 4 for MobileNetV2; the test's lengths and "
            "threshold are unpublished",
            "the networks of Fig. 4 are not told by a number; these are a deep ResNet and "
            "MobileNetV2",
        ),
    )


@STUDIES.register("fig5")
def fig5() -> Study:
    """Accuracy against cost."""
    return Study(
        name="fig5",
        description="CPT Fig. 5: accuracy against training cost, static and cyclic, six networks.",
        methods=with_published(of_family("cpt-figure5"), "CPT Fig. 5", "CPT Table 2"),
        baseline=BASELINE,
        notes=(
            *notes_of("cpt-figure5"),
            "published accuracies are those that Table 2 has too",
        ),
    )


@STUDIES.register("fig6")
def fig6() -> Study:
    """Loss landscapes, static and cyclic."""
    return Study(
        name="fig6",
        description="CPT Fig. 6: the static and cyclic runs whose minima are compared.",
        methods=of_family("cpt-figure6"),
        seeds=(0,),
        baseline=BASELINE,
        notes=(LANDSCAPE,),
    )


@STUDIES.register("fig7")
def fig7() -> Study:
    """Upper bounds."""
    networks = ("cifar100-resnet38", "cifar100-resnet74")
    statics = (f"{network}-static-8-8" for network in networks)
    return Study(
        name="fig7",
        description="CPT Fig. 7: how much does the upper bound of the cycle matter?",
        methods=with_static(of_family("cpt-figure7"), *statics),
        baseline=BASELINE,
        notes=notes_of("cpt-figure7"),
    )


@STUDIES.register("fig8")
def fig8() -> Study:
    """Numbers of cycles."""
    networks = ("cifar100-resnet38", "cifar100-resnet74")
    statics = (f"{network}-static-8-8" for network in networks)
    return Study(
        name="fig8",
        description="CPT Fig. 8: how much does the number of cycles matter?",
        methods=with_static(of_family("cpt-figure8", text=number_of_cycles), *statics),
        baseline=BASELINE,
        notes=notes_of("cpt-figure8"),
    )


@STUDIES.register("fig9")
def fig9() -> Study:
    """Training curves and their spread."""
    runs = ("static-8-8", "cpt-3-8-8", "static-6-6", "cpt-3-6-6")
    networks = ("resnet38", "resnet74", "resnet110")
    names = [f"cifar100-{network}-{run}" for network in networks for run in runs]
    return Study(
        name="fig9",
        description="CPT Fig. 9: training curves of static and cyclic runs, and their spread.",
        methods=tuple(from_recipe(name) for name in names),
        seeds=(0, 1, 2, 3, 4),
        baseline=BASELINE,
        notes=(
            "what Fig. 9 plots is not among the published numbers; this is the paper's claim that "
            "CPT trains with less variance, on networks of our choice",
        ),
    )
