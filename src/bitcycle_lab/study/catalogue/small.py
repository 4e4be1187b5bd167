"""Comparisons for one machine that no published table has in this form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bitcycle.quantizers import QUANTIZERS
from bitcycle_lab.recipes import recipe
from bitcycle_lab.recipes.base import CPT_CYCLES, FEW_CYCLES, as_float32, with_bits
from bitcycle_lab.recipes.cifar import cifar
from bitcycle_lab.recipes.graph import quantize_sums
from bitcycle_lab.study.catalogue.methods import (
    DIGITS,
    label,
    method,
    methods_of,
    small_study,
)
from bitcycle_lab.study.demo import demo_study
from bitcycle_lab.study.study import STUDIES, Method, Study
from bitcycle_lab.train.config import CheckpointConfig, EvalConfig, RunConfig


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


@STUDIES.register("lengths")
def lengths() -> Study:
    """Runs of several lengths."""
    return small_study(
        "lengths",
        "CPT against static bits on CIFAR-10 in runs of 500, 2,000 and 8,000 steps: how long is "
        "enough?",
        sorted(_of_lengths(), key=lambda each: each.config.steps or 0),
        notes=(
            "all 50,000 training images, batch 128, the paper's augmentation and learning rate, "
            "whose steps are at the same shares of every run",
            "integer kernels (precision.kernel native) and channels-last; one run of 8,000 steps "
            "takes about 18 minutes on one core",
            "N: cycles in the run, whatever its length",
        ),
    )


def _of_lengths() -> Iterator[Method]:
    """Longer runs have fewer methods and seeds; all have static 8/8 and CPT 3-8/8, N = 32."""
    for num_cycles, kind, cell, num_seeds in (  # None: all seeds of the study
        (0, "float32", "", {500: None, 2_000: 3, 8_000: 1}),
        (0, "static", "8/8", {500: None, 2_000: None, 8_000: None}),
        (8, "cpt", "3-8/8", {500: None, 2_000: None}),
        (32, "cpt", "3-8/8", {500: None, 2_000: None, 8_000: None}),
        (8, "cpt", "4-8/8", {500: None, 2_000: None}),
        (8, "cpt", "5-8/8", {500: None}),
        (32, "cpt", "4-8/8", {8_000: None}),
        (0, "static", "6/6", {500: None, 2_000: 3, 8_000: 1}),
        (8, "cpt", "3-6/6", {500: None}),
    ):
        for steps, seeds in num_seeds.items():
            base, end = _long_cifar10(steps), f"-n{num_cycles}" if num_cycles else ""
            if kind == "float32":
                config = as_float32(base, f"-{steps}")
            else:
                config = with_bits(base, kind, cell, num_cycles, suffix=f"{end}-{steps}")
            cycles = f", N = {num_cycles}" if num_cycles else ""
            run = method(config, f"{label(config)}{cycles}")
            yield replace(run, group=f"{run.group}, {steps:,} steps", num_seeds=seeds)


def _long_cifar10(steps: int) -> RunConfig:
    """A ResNet-8 on all of CIFAR-10; the longest runs are evaluated at the end of each cycle."""
    base, per_cycle = cifar("cifar10", "resnet8"), 1 / CPT_CYCLES
    return replace(
        base,
        precision=replace(base.precision, kernel="native"),
        eval=EvalConfig(every=per_cycle if steps == 8_000 else 0),
        checkpoint=CheckpointConfig(every=per_cycle, keep=CPT_CYCLES),
        channels_last=True,
        steps=steps,
    )


STUDIES.register("demo")(demo_study)
