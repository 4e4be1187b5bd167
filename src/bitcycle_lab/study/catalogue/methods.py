"""What shipped studies share: runs as methods, named as the papers name them, and small twins.

A small study has the methods of its table or figure. Its values are not the published ones: another
network, other data, a run of seconds or minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from bitcycle.schedules import parse_schedule
from bitcycle_lab.published import display_name
from bitcycle_lab.recipes import FAMILIES, list_recipes, recipe
from bitcycle_lab.recipes.base import CPT_CYCLES, FEW_CYCLES
from bitcycle_lab.study.study import Kind, Method, Study
from bitcycle_lab.train.config import RunConfig, ScheduleText

QUANTIZER_LABELS = {
    "absmax": "AbsMax",
    "dorefa": "DoReFa",
    "pow2": "power of two",
    "sbm_full": "SBM full",
    "wageubn": "WAGEUBN",
}
SCHEDULE_LABELS = {"CR": "CPT", "ramp": "progressive"}

BASELINE = "static 8/8"
IMAGES = "on digits one of the 360 test images is 0.28 points"
DIGITS = f"{IMAGES}; cycles are 8 in 240 steps"
CIFAR10 = (
    "CIFAR-10: 512 steps on 10,000 fixed training images, all 10,000 test images, 8 cycles: "
    "3 to 4 minutes a run on one core"
)
WIKITEXT2 = (
    "WikiText-2 with the 5,000 most frequent words, 13 % of the text is <unk>: perplexities are "
    "lower than those of all 33,278"
)


def network(config: RunConfig) -> str:
    """The model as a paper writes it.

    >>> network(recipe("cifar100-resnet74-static-8-8")), network(recipe("ptb-lstm-static-8-8"))
    ('ResNet-74', 'LSTM')
    """
    return display_name(config.model.name)


def group(config: RunConfig) -> str:
    """Model and data.

    >>> group(recipe("imagenet-resnet18-float32"))
    'ResNet-18, ImageNet'
    """
    return f"{network(config)}, {display_name(config.data.name)}"


def bits(text: ScheduleText) -> str:
    """A schedule's range.

    >>> bits(8), bits("CR:3-8:32"), bits("fp32"), bits("nvfp4")
    ('8', '3-8', '32', 'nvfp4')
    """
    assert not isinstance(text, dict)
    schedule = parse_schedule(text)
    low, high = (32 if end is None else end for end in (schedule.low, schedule.high))
    return f"{high}" if low == high else f"{low}-{high}"


def label(config: RunConfig) -> str:
    """Method and bits, forward/backward; the quantizer's name where it is not sbm.

    >>> [label(recipe(f"cifar100-resnet74-{name}")) for name in (
    ...     "static-8-8", "cpt-3-8-8", "dorefa-6-6", "triangle-3-6-6", "gradcycle-6-6-8")]
    ['static 8/8', 'CPT 3-8/8', 'DoReFa 6/6', 'triangle 3-6/6', 'gradients cycled 6/6-8']
    """
    precision = config.precision
    if precision.is_float:
        return "float32"
    forward, backward = bits(precision.forward), bits(precision.backward)
    assert not isinstance(precision.forward, dict)
    kind = parse_schedule(precision.forward).name
    method = SCHEDULE_LABELS.get(kind, kind)
    if "-" not in forward:
        method = "gradients cycled" if "-" in backward else "static"
    by = QUANTIZER_LABELS.get(precision.quantizer, "")
    words = [by] if by and method == "static" else [by, method]
    return " ".join([*filter(None, words), f"{forward}/{backward}"])


def method(config: RunConfig, text: str | None = None) -> Method:
    """A run as a method; its label is its bits unless there is a text."""
    return Method(label=text or label(config), config=config, group=group(config))


def methods_of(*names: str) -> tuple[Method, ...]:
    """Recipes as methods."""
    return tuple(method(recipe(name)) for name in names)


def of_family(
    family: str,
    *,
    text: Callable[[RunConfig], str] = label,
    place: Callable[[RunConfig], tuple[str, str]] | None = None,
) -> tuple[Method, ...]:
    """The cells of a published table, in its order, with its values."""
    return tuple(
        Method(
            label=text(entry.config),
            config=entry.config,
            group=group(entry.config),
            place=None if place is None else place(entry.config),
            published=entry.published,
        )
        for entry in FAMILIES[family]()
    )


def notes_of(family: str) -> tuple[str, ...]:
    """The notes of a table's recipes, each once."""
    return tuple(dict.fromkeys(note for entry in FAMILIES[family]() for note in entry.notes))


def with_published(methods: Iterable[Method], *where: str) -> tuple[Method, ...]:
    """The methods with what these tables and figures print of the recipes of their names."""
    known = {info.name: info.published for info in list_recipes()}
    return tuple(
        replace(m, published=tuple(p for p in known.get(m.config.name, ()) if p.where in where))
        for m in methods
    )


def small_study(
    name: str,
    description: str,
    methods: Iterable[Method],
    *,
    baseline: str = BASELINE,
    seeds: int = 5,
    kind: Kind = "comparison",
    notes: tuple[str, ...] = (),
) -> Study:
    """A study for one machine, whose cores the runs share: each has one thread."""
    return Study(
        name=name,
        description=description,
        methods=tuple(replace(m, config=replace(m.config, threads=1)) for m in methods),
        seeds=tuple(range(seeds)),
        baseline=baseline,
        kind=kind,
        scale="small",
        notes=notes,
    )


def small_twin(
    study: Study,
    description: str,
    *,
    network: str = "resnet74",
    others: tuple[Method, ...] = (),
    seeds: int = 5,
    notes: tuple[str, ...] = (DIGITS,),
) -> Study:
    """The runs of one of a study's networks on CIFAR-100, on digits instead; then the others."""
    prefix = f"cifar100-{network}-"
    methods = []
    for large in study.methods:
        if large.config.name.startswith(prefix):
            config = on_digits(large.config, prefix)
            within = large.group.removeprefix(group(large.config))
            where = f"{group(config)}{within}"
            methods.append(Method(label=large.label, config=config, group=where))
    assert study.baseline is not None
    return small_study(
        f"{study.name}-small",
        description,
        (*methods, *others),
        baseline=study.baseline,
        seeds=seeds,
        notes=notes,
    )


def on_digits(config: RunConfig, prefix: str) -> RunConfig:
    """The same method for the small network: its bits in fewer cycles, its rates and evaluation.

    >>> config = recipe("cifar100-resnet74-cpt-3-8-8-start60")
    >>> twin = on_digits(config, "cifar100-resnet74-")
    >>> twin.name, twin.precision.forward, twin.steps
    ('digits-cpt-3-8-8-start60', 'delay@0.375(CR:3-8:8)', 240)
    """
    digits, precision = recipe("digits"), config.precision
    options = dict(precision.quantizer_options)
    if "total_steps" in options:
        options["total_steps"] = digits.steps
    return replace(
        digits,
        name=f"digits-{config.name.removeprefix(prefix)}",
        optimizer=config.optimizer,
        lr=config.lr,
        eval=replace(digits.eval, precision=config.eval.precision),
        precision=replace(
            precision,
            quantizer_options=options,
            forward=_in_few_cycles(precision.forward),
            backward=_in_few_cycles(precision.backward),
        ),
    )


def _in_few_cycles(text: ScheduleText) -> ScheduleText:
    return text.replace(f":{CPT_CYCLES}", f":{FEW_CYCLES}") if isinstance(text, str) else text
