"""Comparisons for one machine that no published table has in this form."""

from __future__ import annotations

from dataclasses import replace

from bitcycle.quantizers import QUANTIZERS
from bitcycle.recipes import recipe
from bitcycle.recipes.base import CPT_CYCLES, FEW_CYCLES, with_bits
from bitcycle.recipes.cifar import delayed
from bitcycle.recipes.graph import quantize_sums
from bitcycle.study.catalogue.methods import (
    CIFAR10,
    DIGITS,
    label,
    method,
    methods_of,
    small_study,
)
from bitcycle.study.demo import demo_study
from bitcycle.study.study import STUDIES, Method, Study
from bitcycle.train.config import RunConfig

LENGTHS = (30, 60, 120, 240, 480)  # steps


@STUDIES.register("digits")
def digits() -> Study:
    """The main methods on the built-in data."""
    runs = ("float32", "static-8-8", "static-6-6", "static-4-8", "static-3-8",
            "cpt-3-8-8", "cpt-3-6-6")  # fmt: skip
    return small_study(
        "digits",
        "Float32, static bits and CPT on digits: no download.",
        methods_of(*(f"digits-{run}" for run in runs)),
        notes=(DIGITS,),
    )


@STUDIES.register("quantizers-small")
def quantizers_small() -> Study:
    """Every quantizer of integers, static and cycled."""
    methods = [
        method(with_bits(recipe("digits"), *run, FEW_CYCLES, quantizer=name))
        for name, kind in QUANTIZERS.items()
        if not kind.scales_by_product
        for run in (("static", "8/8"), ("cpt", "3-8/8"))
    ]
    return small_study(
        "quantizers-small",
        "Every quantizer at static 8/8 and with CPT 3-8/8 on digits.",
        methods,
        notes=(
            DIGITS,
            "static and CPT without a name are SBM, CPT's quantizer",
            "the last layer is float32 in every run, with DoReFa and WAGEUBN the first one too, as "
            "published",
            "SBM full is as Banner et al. published it: weight gradients from float32 errors, "
            "which is what it costs more for, and Range BN",
        ),
    )


@STUDIES.register("cifar10-small")
def cifar10_small() -> Study:
    """Schedules on real photographs."""

    base = recipe("cifar10-resnet8")

    def run(name: str, cell: str, cycles: int = FEW_CYCLES, end: str = "") -> RunConfig:
        return with_bits(base, name, cell, cycles, suffix=f"{end}-small")

    late = delayed(with_bits(base, "cpt", "3-8/8", FEW_CYCLES), 60, suffix="-small")
    return small_study(
        "cifar10-small",
        "Schedules on CIFAR-10 with a ResNet-8: what does cycling cost and bring?",
        (
            *methods_of("cifar10-resnet8-float32-small"),
            method(run("static", "8/8")),
            method(run("cpt", "3-8/8"), "CPT 3-8/8, N = 8"),
            method(run("cpt", "3-8/8", CPT_CYCLES, "-n32"), "CPT 3-8/8, N = 32"),
            method(run("RR", "3-8/8")),
            method(run("ER", "3-8/8")),
            method(run("static", "6/6")),
            method(run("cpt", "3-6/6"), "CPT 3-6/6, N = 8"),
            method(run("progressive", "3-8/8")),
            method(late, "CPT 3-8/8 from 37.5 % of the run"),
        ),
        notes=(
            CIFAR10,
            "64 steps a cycle are too few for RR, which ends at 7 bits",
            "37.5 % is the paper's epoch 60 of 160; 3 bits until then",
        ),
    )


@STUDIES.register("snli-small")
def snli_small() -> Study:
    """Pairs of sentences."""
    runs = ("float32", "static-8-8", "cpt-5-8-8")
    return small_study(
        "snli-small",
        "CPT against static bits for a small BERT on SNLI.",
        methods_of(*(f"snli-bert-{run}-small" for run in runs)),
        notes=("two layers of 128 from scratch, 900 steps of 64 pairs, 8 cycles",),
    )


@STUDIES.register("gcn-small")
def gcn_small() -> Study:
    """Graph networks in both modes."""
    methods: list[Method] = []
    for model in ("gcn", "sage"):
        base = f"cora-{model}"
        runs = [recipe(f"{base}-{run}") for run in ("static-8-8", "cpt-3-8-8")]
        methods += methods_of(f"{base}-float32")
        methods += (method(run, f"{label(run)}, FP-Agg") for run in runs)
        methods += (method(quantize_sums(run), f"{label(run)}, Q-Agg") for run in runs)
    return small_study(
        "gcn-small",
        "CPT against static bits for graph networks on Cora, sums along edges float32 or not.",
        methods,
        baseline="static 8/8, FP-Agg",
        notes=(
            "FP-Agg: sums along edges stay float32; Q-Agg: they are quantized too",
            "layer normalization between the layers, as in the follow-up; the GCN of Kipf and "
            "Welling, published with 81.5, has none and drops features too",
            "200 steps, 8 cycles, the standard split with 1,000 test nodes: one is 0.1 points",
        ),
    )


@STUDIES.register("lengths-small")
def lengths_small() -> Study:
    """Runs of several lengths."""
    methods = [
        replace(each, config=replace(each.config, steps=steps),
                group=f"{each.group}, {steps} steps")
        for steps in LENGTHS
        for each in methods_of("digits-static-8-8", "digits-cpt-3-8-8")
    ]  # fmt: skip
    return small_study(
        "lengths-small",
        "CPT against static bits on digits in runs of several lengths: how long is enough?",
        methods,
        seeds=10,
        notes=(
            "on digits one of the 360 test images is 0.28 points; 8 cycles whatever the length; "
            "the learning rate follows the same fractions of the run",
        ),
    )


STUDIES.register("demo")(demo_study)
