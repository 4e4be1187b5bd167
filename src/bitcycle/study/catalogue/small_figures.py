"""CPT's figures for one machine: the same runs on digits."""

from __future__ import annotations

from bitcycle.study.catalogue import figures
from bitcycle.study.catalogue.figures import BASELINE, LANDSCAPE
from bitcycle.study.catalogue.parts import from_recipe, from_recipes, small_study
from bitcycle.study.catalogue.small_tables import DIGITS, on_digits
from bitcycle.study.study import STUDIES, Study

CYCLES = (2, 4, 8, 16, 32)


@STUDIES.register("fig1-small")
def fig1_small() -> Study:
    """Static, progressive, cyclic."""
    return small_study(
        "fig1-small",
        "Fig. 1 on digits: static, progressive and cyclic precision over training.",
        on_digits(figures.fig1()),
        baseline=BASELINE,
        notes=(DIGITS,),
    )


@STUDIES.register("fig2-small")
def fig2_small() -> Study:
    """Loss landscapes of schedules."""
    return small_study(
        "fig2-small",
        "Fig. 2 on digits: the loss landscapes that precision schedules end in.",
        on_digits(figures.fig2(), "cifar100-resnet110-"),
        baseline=BASELINE,
        notes=(DIGITS, LANDSCAPE),
    )


@STUDIES.register("fig4-small")
def fig4_small() -> Study:
    """The precision range test."""
    runs = from_recipes("digits-static-8-8", "digits-cpt-3-8-8")
    return small_study(
        "fig4-small",
        "Fig. 4 on digits: is the range test's lower bound as good as 3 bits?",
        (*runs, figures.found_low("digits-cpt-3-8-8", steps_per_precision=50)),
        baseline=BASELINE,
        notes=(
            DIGITS,
            "the test takes 50 steps a precision, longer than a cycle of 30; its cost is counted",
            "the picture is drawn by: bitcycle range-test digits-cpt-3-8-8 "
            "--steps-per-precision 50",
        ),
    )


@STUDIES.register("fig5-small")
def fig5_small() -> Study:
    """Accuracy against cost."""
    return small_study(
        "fig5-small",
        "Fig. 5 on digits: accuracy against training cost, static and cyclic.",
        on_digits(figures.fig5()),
        baseline=BASELINE,
        notes=(DIGITS,),
    )


@STUDIES.register("fig6-small")
def fig6_small() -> Study:
    """Loss landscapes, static and cyclic."""
    return small_study(
        "fig6-small",
        "Fig. 6 on digits: the static and cyclic runs whose minima are compared.",
        on_digits(figures.fig6(), "cifar100-resnet110-"),
        baseline=BASELINE,
        notes=(DIGITS, LANDSCAPE),
    )


@STUDIES.register("fig7-small")
def fig7_small() -> Study:
    """Upper bounds."""
    return small_study(
        "fig7-small",
        "Fig. 7 on digits: how much does the upper bound of the cycle matter?",
        on_digits(figures.fig7()),
        baseline=BASELINE,
        notes=(DIGITS,),
    )


@STUDIES.register("fig8-small")
def fig8_small() -> Study:
    """Numbers of cycles."""
    cyclic = (
        from_recipe(f"digits-cpt-3-8-8{'' if n == 8 else f'-n{n}'}", f"N = {n}") for n in CYCLES
    )
    return small_study(
        "fig8-small",
        "Fig. 8 on digits: how much does the number of cycles matter?",
        (from_recipe("digits-static-8-8"), *cyclic),
        baseline=BASELINE,
        notes=(DIGITS,),
    )


@STUDIES.register("fig9-small")
def fig9_small() -> Study:
    """Training curves and their spread."""
    return small_study(
        "fig9-small",
        "Fig. 9 on digits: do cyclic runs spread less than static ones?",
        on_digits(figures.fig9()),
        baseline=BASELINE,
        seeds=10,
        notes=(DIGITS, *figures.fig9().notes),
    )
