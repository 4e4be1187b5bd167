"""Comparisons for one machine that no published table has in this form."""

from __future__ import annotations

from dataclasses import replace

from bitcycle.quantizers import QUANTIZERS
from bitcycle.study.catalogue.parts import from_recipe, from_recipes, small_study
from bitcycle.study.catalogue.small_tables import BASELINE, CIFAR10, DIGITS
from bitcycle.study.demo import demo_study
from bitcycle.study.study import STUDIES, Method, Study

LENGTHS = (30, 60, 120, 240, 480)  # steps


@STUDIES.register("digits")
def digits() -> Study:
    """The main methods on the built-in data."""
    runs = ("float32", "static-8-8", "static-6-6", "static-4-8", "static-3-8",
            "cpt-3-8-8", "cpt-3-6-6")  # fmt: skip
    return small_study(
        "digits",
        "Float32, static bits and CPT on digits: no download.",
        from_recipes(*(f"digits-{run}" for run in runs)),
        baseline=BASELINE,
        notes=(DIGITS,),
    )


@STUDIES.register("quantizers-small")
def quantizers_small() -> Study:
    """Every quantizer, static and cycled."""
    methods: list[Method] = []
    for name in QUANTIZERS.names():
        run = "" if name == "sbm" else f"{name.replace('_', '-')}-"
        static = f"digits-{run or 'static-'}8-8"
        methods += from_recipes(static, f"digits-{run}cpt-3-8-8")
    return small_study(
        "quantizers-small",
        "Every quantizer at static 8/8 and with CPT 3-8/8 on digits.",
        methods,
        baseline=BASELINE,
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

    def run(name: str, text: str | None = None) -> Method:
        return from_recipe(f"cifar10-resnet8-{name}-small", text)

    return small_study(
        "cifar10-small",
        "Schedules on CIFAR-10 with a ResNet-8: what does cycling cost and bring?",
        (
            run("float32"),
            run("static-8-8"),
            run("cpt-3-8-8", "CPT 3-8/8, N = 8"),
            run("cpt-3-8-8-n32", "CPT 3-8/8, N = 32"),
            run("rr-3-8-8"),
            run("er-3-8-8"),
            run("static-6-6"),
            run("cpt-3-6-6", "CPT 3-6/6, N = 8"),
            run("progressive-3-8-8"),
            run("cpt-3-8-8-start60", "CPT 3-8/8 from 37.5 % of the run"),
        ),
        baseline=BASELINE,
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
        from_recipes(*(f"snli-bert-{run}-small" for run in runs)),
        baseline=BASELINE,
        notes=("two layers of 128 from scratch, 900 steps of 64 pairs, 8 cycles",),
    )


@STUDIES.register("gcn-small")
def gcn_small() -> Study:
    """Graph networks in both modes."""
    methods: list[Method] = []
    for model in ("gcn", "sage"):
        for suffix, mode in (("", "FP-Agg"), ("-qagg", "Q-Agg")):
            names = [f"cora-{model}-{run}{suffix}" for run in ("static-8-8", "cpt-3-8-8")]
            for method in from_recipes(f"cora-{model}-float32", *names):
                if method.label == "float32" and suffix:
                    continue
                methods.append(replace(method, label=_with_mode(method.label, mode)))
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


def _with_mode(label: str, mode: str) -> str:
    return label if label == "float32" else f"{label}, {mode}"


@STUDIES.register("lengths-small")
def lengths_small() -> Study:
    """Runs of several lengths."""
    methods = [
        replace(method, config=replace(method.config, steps=steps),
                group=f"{method.group}, {steps} steps")
        for steps in LENGTHS
        for method in from_recipes("digits-static-8-8", "digits-cpt-3-8-8")
    ]  # fmt: skip
    return small_study(
        "lengths-small",
        "CPT against static bits on digits in runs of several lengths: how long is enough?",
        methods,
        baseline=BASELINE,
        seeds=10,
        notes=(
            "on digits one of the 360 test images is 0.28 points; 8 cycles whatever the length; "
            "the learning rate follows the same fractions of the run",
        ),
    )


STUDIES.register("demo")(demo_study)
