"""Tables 1 to 8 of CPT: every cell with its published value, and each table for one machine."""

from __future__ import annotations

from dataclasses import replace

from bitcycle.schedules import Delay, parse_schedule
from bitcycle_lab.published import display_name
from bitcycle_lab.recipes import recipe
from bitcycle_lab.recipes.base import FEW_CYCLES, with_bits
from bitcycle_lab.recipes.cifar import EPOCHS
from bitcycle_lab.recipes.imagenet import up_to_float32
from bitcycle_lab.study.catalogue.methods import (
    CIFAR10,
    DIGITS,
    IMAGES,
    WIKITEXT2,
    bits,
    label,
    method,
    methods_of,
    network,
    notes_of,
    of_family,
    small_study,
    small_twin,
)
from bitcycle_lab.study.study import STUDIES, Method, Study
from bitcycle_lab.train.config import EvalConfig, RunConfig

SHAPES = {"CR": "cosine", "triangle": "triangle", "anneal": "cosine annealing"}


def first_stage(config: RunConfig) -> str:
    """The bits of Table 1's first half."""
    if config.precision.is_float:
        return "float32"
    assert isinstance(config.precision.forward, str)
    return f"{parse_schedule(config.precision.forward).low} bits"


def rate(config: RunConfig) -> str:
    """The learning rate of Table 1's first half."""
    return f"lr {config.lr.warmup_lr:g}"


def start_epoch(config: RunConfig) -> int:
    """Where Table 7's cycles begin, of 160 epochs."""
    assert not isinstance(config.precision.forward, dict)
    schedule = parse_schedule(config.precision.forward)
    return round(schedule.start * EPOCHS) if isinstance(schedule, Delay) else 0


def cell_bits(config: RunConfig) -> str:
    """Forward/backward as the tables print them."""
    return f"{bits(config.precision.forward)}/{bits(config.precision.backward)}"


def shape(config: RunConfig) -> str:
    """The schedule of Table 6."""
    assert not isinstance(config.precision.forward, dict)
    return SHAPES[parse_schedule(config.precision.forward).name]


def by_bits(methods: tuple[Method, ...]) -> tuple[Method, ...]:
    """Groups of one range each, for tables that compare within a range."""
    return tuple(
        replace(method, group=f"{method.group}, {cell_bits(method.config)}") for method in methods
    )


def with_network(config: RunConfig) -> tuple[str, str]:
    """A row for each network and method; a column for each dataset."""
    return f"{network(config)}, {label(config)}", display_name(config.data.name)


@STUDIES.register("table1")
def table1() -> Study:
    """Learning rate and precision of the first half."""
    methods = of_family(
        "cpt-table1",
        text=first_stage,
        place=lambda config: (f"{network(config)}, {first_stage(config)}", rate(config)),
    )
    return Study(
        name="table1",
        description="CPT Table 1: the bits of the first half at several learning rates.",
        methods=tuple(replace(m, group=f"{m.group}, {rate(m.config)}") for m in methods),
        baseline="float32",
        notes=(
            "bits and rate are those of the first half; the second half is float32 at rates 0.01 "
            "and 0.001 in every run",
            "the error bits of the first half are unpublished, 8 here",
        ),
    )


@STUDIES.register("table1-small")
def table1_small() -> Study:
    """Learning rate and precision of the first half, on digits."""
    full = table1()
    return small_twin(
        full,
        "Table 1 on digits: the bits of the first half at several learning rates.",
        notes=(IMAGES, *full.notes),
    )


@STUDIES.register("table2")
def table2() -> Study:
    """CIFAR."""
    return Study(
        name="table2",
        description="CPT Table 2: CPT against DoReFa, WAGEUBN and SBM at static bits on CIFAR.",
        methods=of_family("cpt-table2", place=with_network),
        baseline="static 8/8",
        notes=(
            "static is SBM, the quantizer that CPT uses too",
            "published latencies are of an FPGA, which is not measured here",
        ),
    )


@STUDIES.register("table2-small")
def table2_small() -> Study:
    """Quantizers and CPT, on digits and CIFAR-10."""
    base = recipe("cifar10-resnet8")
    cifar10 = [
        with_bits(base, name, cell, FEW_CYCLES, quantizer=quantizer, suffix="-small")
        for static, cyclic in (("8/8", "3-8/8"), ("6/6", "3-6/6"))
        for quantizer, name, cell in (
            ("dorefa", "static", static),
            ("wageubn", "static", static),
            ("sbm", "static", static),
            ("sbm", "cpt", cyclic),
        )
    ]
    return small_twin(
        table2(),
        "Table 2 on digits and CIFAR-10: CPT against static bits of three quantizers.",
        others=tuple(map(method, cifar10)),
        notes=(DIGITS, CIFAR10),
    )


@STUDIES.register("table3")
def table3() -> Study:
    """ImageNet."""
    return Study(
        name="table3",
        description="CPT Table 3: CPT against static bits on ImageNet.",
        methods=of_family("cpt-table3", place=with_network),
        baseline="static 8/8",
        notes=notes_of("cpt-table3"),
    )


@STUDIES.register("table3-small")
def table3_small() -> Study:
    """ImageNet's ranges, on digits."""
    cells = (("static", "8/8"), ("cpt", "4-8/8"), ("static", "6/6"), ("cpt", "4-6/6"))
    runs = [with_bits(recipe("digits"), *cell, FEW_CYCLES) for cell in cells]
    return small_study(
        "table3-small",
        "Table 3's bits on digits: CPT from 4 bits against static bits.",
        map(method, runs),
        notes=(DIGITS, "stem and shortcuts are quantized here, in ImageNet's networks not"),
    )


@STUDIES.register("table4")
def table4() -> Study:
    """ImageNet, up to full precision."""
    return Study(
        name="table4",
        description="CPT Table 4: CPT between 8 bits and full precision against float32.",
        methods=of_family("cpt-table4", place=with_network),
        baseline="float32",
        notes=("errors stay float32; 24 bits and more are float32",),
    )


@STUDIES.register("table4-small")
def table4_small() -> Study:
    """Up to full precision, on digits."""
    cpt = up_to_float32(recipe("digits"), "8-32", FEW_CYCLES)
    return small_study(
        "table4-small",
        "Table 4 on digits: CPT between 8 bits and full precision against float32.",
        (*methods_of("digits-float32"), method(cpt)),
        baseline="float32",
        notes=(DIGITS,),
    )


@STUDIES.register("table5")
def table5() -> Study:
    """Language models."""
    return Study(
        name="table5",
        description="CPT Table 5: CPT against static bits for language models.",
        methods=of_family("cpt-table5", place=with_network),
        baseline="static 8/8",
        notes=notes_of("cpt-table5"),
    )


@STUDIES.register("table5-small")
def table5_small() -> Study:
    """Language models, on WikiText-2."""
    methods = []
    for model in ("lstm", "transformer"):
        base = recipe(f"wikitext2-{model}")
        base = replace(
            base,
            precision=replace(base.precision, kernel="native"),
            eval=EvalConfig(every=1 / FEW_CYCLES),
            steps=6_000,
        )
        for kind, cell in (("static", "8/8"), ("cpt", "4-8/8"), ("cpt", "5-8/8")):
            methods.append(method(with_bits(base, kind, cell, FEW_CYCLES, suffix="-6000")))
    return small_study(
        "table5-small",
        "Table 5 on WikiText-2: CPT against static bits, a small LSTM and a small Transformer.",
        methods,
        seeds=3,
        notes=(
            WIKITEXT2,
            "6,000 steps are 2 epochs of the LSTM and 3 of the Transformer; 8 cycles; integer "
            "kernels (precision.kernel native)",
        ),
    )


@STUDIES.register("table6")
def table6() -> Study:
    """Shapes of the cycle."""
    methods = of_family(
        "cpt-table6",
        text=shape,
        place=lambda config: (
            shape(config),
            f"{network(config)}, {cell_bits(config)}",
        ),
    )
    return Study(
        name="table6",
        description="CPT Table 6: cosine cycles against triangles and cosine annealing.",
        methods=by_bits(methods),
        baseline="cosine",
        notes=("for ResNet-164 the paper prints other values here than in Table 2",),
    )


@STUDIES.register("table6-small")
def table6_small() -> Study:
    """Shapes of the cycle, on digits."""
    return small_twin(
        table6(), "Table 6 on digits: cosine cycles against triangles and cosine annealing."
    )


@STUDIES.register("table7")
def table7() -> Study:
    """Late starts."""
    methods = of_family(
        "cpt-table7",
        text=lambda config: f"from epoch {start_epoch(config)}",
        place=lambda config: (
            f"{network(config)}, {cell_bits(config)}",
            f"epoch {start_epoch(config)}",
        ),
    )
    return Study(
        name="table7",
        description="CPT Table 7: CPT that starts late, at the lowest bits until then.",
        methods=by_bits(methods),
        baseline="from epoch 0",
        notes=(*notes_of("cpt-table7"), "epochs are of 160; 160 is never"),
    )


@STUDIES.register("table7-small")
def table7_small() -> Study:
    """Late starts, on digits."""
    return small_twin(
        table7(),
        "Table 7 on digits: CPT that starts late, at the lowest bits until then.",
        notes=(DIGITS, "epochs are of 160 for the whole run; 160 is never, evaluated at 3 bits"),
    )


@STUDIES.register("table8")
def table8() -> Study:
    """Cycled gradients."""
    return Study(
        name="table8",
        description="CPT Table 8: forward static at 6 bits, the bits of errors cycled.",
        methods=of_family(
            "cpt-table8",
            place=lambda config: (
                f"forward {bits(config.precision.forward)}",
                f"backward {bits(config.precision.backward)}",
            ),
        ),
        baseline="static 6/6",
        notes=("what is cycled are the errors; SBM has no rule for weight gradients",),
    )


@STUDIES.register("table8-small")
def table8_small() -> Study:
    """Cycled gradients, on digits."""
    full = table8()
    return small_twin(
        full,
        "Table 8 on digits: forward static at 6 bits, the bits of errors cycled.",
        notes=(DIGITS, *full.notes),
    )
