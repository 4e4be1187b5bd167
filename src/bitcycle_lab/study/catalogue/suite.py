"""The follow-up's suite: do ten schedules that cost more also end better, in several domains?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bitcycle_lab.published import BitRange
from bitcycle_lab.recipes import recipe
from bitcycle_lab.recipes.base import FEW_CYCLES, with_bits
from bitcycle_lab.recipes.graph import quantize_sums
from bitcycle_lab.recipes.pairs import XNLI_CYCLES
from bitcycle_lab.study.catalogue.methods import DIGITS, WIKITEXT2, bits, group, small_study
from bitcycle_lab.study.study import STUDIES, Method, Study
from bitcycle_lab.train.config import RunConfig

TEN = ("LR", "LT", "CR", "CT", "RR", "RT-V", "RT-H", "ER", "ET-V", "ET-H")
NOTES = (
    "published by the follow-up (Better Schedules for Low Precision Training), whose tables are "
    "not part of the package: no published values; it says that more expensive schedules end "
    "better",
    "static is at the schedules' upper bound",
)


def ten(base: str, cell: str, cycles: int = FEW_CYCLES, suffix: str = "") -> Iterator[RunConfig]:
    """Static bits, at the upper bound, and the ten schedules."""
    config, at = recipe(base), BitRange.parse(cell)
    yield with_bits(config, "static", f"{at.high}/{at.backward}", suffix=suffix)
    # on CIFAR, where CPT has 32 cycles, the number is part of the run's name
    end = f"-n{cycles}" if base.startswith("cifar") else suffix
    for name in TEN:
        yield with_bits(config, name, cell, cycles, suffix=end)


def as_methods(runs: Iterable[RunConfig], mode: str = "") -> Iterator[Method]:
    """Labelled by their schedules; a group is model, data, range and mode."""
    static, *cyclic = runs
    precision = cyclic[0].precision
    where = f"{group(static)}, {bits(precision.forward)}/{bits(precision.backward)}{mode}"
    yield Method(label="static", config=static, group=where)
    for name, config in zip(TEN, cyclic, strict=True):
        yield Method(label=name, config=config, group=where)


def full_size() -> Iterator[Method]:
    """Images, graphs, text, and pairs of sentences."""
    for data in ("cifar10", "cifar100"):
        yield from as_methods(ten(f"{data}-resnet74", "3-8/8"))
    for cell in ("3-8/8", "3-6/6"):
        yield from as_methods(ten("arxiv-gcn", cell), ", FP-Agg")
    for cell in ("3-8/8", "3-6/6"):
        yield from as_methods(map(quantize_sums, ten("arxiv-gcn", cell)), ", Q-Agg")
    for cell in ("5-8/8", "5-6/6"):
        yield from as_methods(ten("ptb-lstm800", cell))
    yield from as_methods(ten("xnli-mbert", "5-8/8", XNLI_CYCLES))


@STUDIES.register("schedule-suite")
def schedule_suite() -> Study:
    """Ten schedules x domains."""
    return Study(
        name="schedule-suite",
        description="Ten schedules on images, graphs, text and pairs: does cost predict quality?",
        methods=tuple(full_size()),
        baseline="static",
        kind="suite",
        notes=(
            *NOTES,
            "8 cycles, 2 on XNLI, which fine-tunes a downloaded model (--model.path)",
            "on CIFAR the network is our choice, CPT's ResNet-74; object detection and OGBN-"
            "Products of the follow-up are not part of it",
            "RR, RT-V and RT-H need 91 steps a leg to reach 8 bits from 3: over the 500 steps of "
            "the graphs they end at 7",
        ),
    )


@STUDIES.register("schedule-suite-small")
def schedule_suite_small() -> Study:
    """Ten schedules x domains, half an hour of one core."""
    return small_suite(
        "schedule-suite-small",
        "Ten schedules on digits and Cora: does cost predict quality?",
        *as_methods(ten("digits", "3-8/8")),
        *as_methods(ten("cora-gcn", "3-8/8")),
        note=f"{DIGITS}; on Cora one of 1,000 test nodes is 0.1 points, and steps are 200",
    )


@STUDIES.register("schedule-suite-lstm-small")
def schedule_suite_lstm_small() -> Study:
    """Ten schedules of a language model, hours of one core."""
    return small_suite(
        "schedule-suite-lstm-small",
        "Ten schedules of an LSTM on WikiText-2: does cost predict quality?",
        *as_methods(ten("wikitext2-lstm", "5-8/8", suffix="-small")),
        note=WIKITEXT2,
    )


def small_suite(name: str, description: str, *methods: Method, note: str) -> Study:
    """A suite for one machine."""
    short = "in runs this short RR does not reach its upper bound, RT-V and RT-H end one bit below"
    return small_study(
        name, description, methods, baseline="static", kind="suite",
        notes=(*NOTES, note, short),
    )  # fmt: skip
