"""The follow-up's question: ten schedules, several domains; does a dearer schedule end better?"""

from __future__ import annotations

from collections.abc import Iterator

from bitcycle.recipes import recipe
from bitcycle.study.catalogue.parts import bits, group, small_study
from bitcycle.study.catalogue.small_tables import DIGITS, WIKITEXT2
from bitcycle.study.study import STUDIES, Method, Study

TEN = ("LR", "LT", "CR", "CT", "RR", "RT-V", "RT-H", "ER", "ET-V", "ET-H")
NOTES = (
    "published by the follow-up (Better Schedules for Low Precision Training), whose tables are "
    "not part of the package: no published values; it says that dearer schedules end better",
    "static is at the schedules' upper bound",
)


def ten(static: str, cyclic: str, mode: str = "") -> Iterator[Method]:
    """Static bits and the ten schedules; `{}` in `cyclic` is where a recipe's name has them."""
    configs = [(name, recipe(cyclic.format(name.lower()))) for name in TEN]
    first = configs[0][1]
    reach = f"{bits(first.precision.forward)}/{bits(first.precision.backward)}"
    where = f"{group(first)}, {reach}{mode}"
    yield Method(label="static", config=recipe(static), group=where)
    for name, config in configs:
        yield Method(label=name, config=config, group=where)


def full_size() -> Iterator[Method]:
    """Images, graphs, text, and pairs of sentences."""
    for data in ("cifar10", "cifar100"):
        yield from ten(f"{data}-resnet74-static-8-8", f"{data}-resnet74-{{}}-3-8-8-n8")
    for suffix, mode in (("", ", FP-Agg"), ("-qagg", ", Q-Agg")):
        for high, reach in (("8-8", "3-8-8"), ("6-6", "3-6-6")):
            static, cyclic = f"arxiv-gcn-static-{high}{suffix}", f"arxiv-gcn-{{}}-{reach}{suffix}"
            yield from ten(static, cyclic, mode)
    for high, reach in (("8-8", "5-8-8"), ("6-6", "5-6-6")):
        yield from ten(f"ptb-lstm800-static-{high}", f"ptb-lstm800-{{}}-{reach}")
    yield from ten("xnli-mbert-static-8-8", "xnli-mbert-{}-5-8-8")


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
        *ten("digits-static-8-8", "digits-{}-3-8-8"),
        *ten("cora-gcn-static-8-8", "cora-gcn-{}-3-8-8"),
        note=f"{DIGITS}; on Cora one of 1,000 test nodes is 0.1 points, and steps are 200",
    )


@STUDIES.register("schedule-suite-lstm-small")
def schedule_suite_lstm_small() -> Study:
    """Ten schedules of a language model, hours of one core."""
    return small_suite(
        "schedule-suite-lstm-small",
        "Ten schedules of an LSTM on WikiText-2: does cost predict quality?",
        *ten("wikitext2-lstm-static-8-8-small", "wikitext2-lstm-{}-5-8-8-small"),
        note=WIKITEXT2,
    )


def small_suite(name: str, description: str, *methods: Method, note: str) -> Study:
    """One for a single machine."""
    short = "in runs this short RR does not reach its upper bound, RT-V and RT-H end one bit below"
    return small_study(
        name, description, methods, baseline="static", kind="suite",
        notes=(*NOTES, note, short),
    )  # fmt: skip
