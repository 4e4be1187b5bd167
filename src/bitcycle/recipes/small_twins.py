"""Small twins: on digits what CPT's tables have on CIFAR-100, on CIFAR-10 what its figures have.

A twin keeps optimizer, rate policy, bits and evaluation of the large run. Its model, data and
length are the small ones, and 8 cycles take the place of 32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bitcycle.recipes.base import FAMILIES, Recipe
from bitcycle.recipes.cifar import table1, table2, table6, table7, table8
from bitcycle.recipes.cifar_figures import figure5, figure7
from bitcycle.recipes.parts import (
    CPT_CYCLES,
    FEW_CYCLES,
    SKIPPED,
    TEN,
    quantized,
    schedule_text,
)
from bitcycle.recipes.small import Build, cifar10, compare, digits, wikitext2_lstm
from bitcycle.recipes.tables import Bits
from bitcycle.train.config import PrecisionConfig, RunConfig, ScheduleText

PREFIX = "cifar100-resnet74-"
SKIP = ("fc",)


def on_digits(config: RunConfig) -> RunConfig:
    """The twin of a run of ResNet-74 on CIFAR-100."""
    precision = config.precision
    options = dict(precision.quantizer_options)
    twin = digits(config.name.removeprefix(PREFIX), precision)
    if "total_steps" in options:
        options["total_steps"] = twin.steps
    return replace(
        twin,
        optimizer=config.optimizer,
        lr=config.lr,
        eval=replace(twin.eval, precision=config.eval.precision),
        precision=replace(
            precision,
            quantizer_options=options,
            forward=_few_cycles(precision.forward),
            backward=_few_cycles(precision.backward),
        ),
    )


def _few_cycles(text: ScheduleText) -> ScheduleText:
    if not isinstance(text, str):
        return text
    return text.replace(f":{CPT_CYCLES}", f":{FEW_CYCLES}")


@FAMILIES.register("digits-tables")
def tables_on_digits() -> Iterator[Recipe]:
    """ResNet-74's cells of Tables 1, 2, 6, 7, 8 and Figs. 5 and 7; the bits of Tables 3 and 4."""
    for entries in (table1, table2, table6, table7, table8, figure5, figure7):
        for entry in entries():
            if entry.config.name.startswith(PREFIX):
                yield Recipe(config=on_digits(entry.config), scale="small")
    yield from compare(digits, ("4/8", "4-8/8", "4-6/6"), SKIP)
    full = quantized(f"CR:8-32:{FEW_CYCLES}", "fp32", skip=SKIP)
    yield Recipe(config=digits("cpt-8-32", full), scale="small")


@FAMILIES.register("digits-cycles")
def numbers_of_cycles_on_digits() -> Iterator[Recipe]:
    """Fig. 8; 8 cycles are the run without a number."""
    for cycles in (2, 4, 16, 32):
        precision = quantized(f"CR:3-8:{cycles}", 8, skip=SKIP)
        yield Recipe(config=digits(f"cpt-3-8-8-n{cycles}", precision), scale="small")


@FAMILIES.register("digits-quantizers")
def quantizers_on_digits() -> Iterator[Recipe]:
    """Every quantizer with the bits of CPT; sbm's cyclic run is elsewhere."""
    for quantizer in SKIPPED:
        if quantizer == "sbm":
            continue
        name = f"{quantizer.replace('_', '-')}-cpt-3-8-8"
        config = by_quantizer(digits, name, quantizer, Bits(3, 8, 8))
        yield Recipe(config=config, notes=(f"CPT by the quantizer {quantizer}",), scale="small")


def by_quantizer(build: Build, name: str, quantizer: str, bits: Bits) -> RunConfig:
    """A run with another quantizer than sbm, first and last layer as its authors have them."""
    skip = SKIPPED[quantizer]
    forward = schedule_text("cpt", bits, FEW_CYCLES)
    config = build(name, quantized(forward, bits.backward, skip=skip, quantizer=quantizer))
    if quantizer != "wageubn":
        return config
    options: dict[str, Any] = {"total_steps": config.steps}  # its gradients get coarser over them
    return replace(config, precision=replace(config.precision, quantizer_options=options))


def resnet8(name: str, precision: PrecisionConfig) -> RunConfig:
    """The smallest network on CIFAR-10."""
    return cifar10("resnet8", name, precision)


@FAMILIES.register("cifar10-methods")
def methods_on_cifar10() -> Iterator[Recipe]:
    """Other schedules and quantizers for the small CIFAR-10 run."""
    forwards = {
        f"cpt-3-8-8-n{CPT_CYCLES}": f"CR:3-8:{CPT_CYCLES}",
        "rr-3-8-8": f"RR:3-8:{FEW_CYCLES}",
        "er-3-8-8": f"ER:3-8:{FEW_CYCLES}",
        "progressive-3-8-8": "ramp:3-8@0.5",
        "cpt-3-8-8-start60": f"delay@0.375(CR:3-8:{FEW_CYCLES})",
    }
    for name, forward in forwards.items():
        config = resnet8(name, quantized(forward, 8, skip=SKIP))
        yield Recipe(config=config, scale="small")
    for quantizer in ("dorefa", "wageubn"):
        for bits in (Bits(8, 8, 8), Bits(6, 6, 6)):
            config = by_quantizer(resnet8, f"{quantizer}-{bits.name}", quantizer, bits)
            yield Recipe(config=config, scale="small")


@FAMILIES.register("schedules-wikitext2")
def ten_schedules_on_wikitext2() -> Iterator[Recipe]:
    """The ten schedules for the small LSTM."""
    bits = Bits(5, 8, 8)
    for method in TEN:
        precision = quantized(schedule_text(method, bits, FEW_CYCLES), 8)
        config = wikitext2_lstm(f"{method.lower()}-{bits.name}", precision)
        yield Recipe(config=config, scale="small")
