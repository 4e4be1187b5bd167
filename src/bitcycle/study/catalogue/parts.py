"""What shipped studies share: recipes as methods, labels and groups as the papers write them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from bitcycle.recipes import FAMILIES, list_recipes, recipe
from bitcycle.schedules import parse_schedule
from bitcycle.study.study import Kind, Method, Study
from bitcycle.train.config import RunConfig, ScheduleText

NETWORKS = {
    "bert": "BERT",
    "digits_resnet": "small ResNet-8",
    "gcn": "GCN",
    "graphsage": "GraphSAGE",
    "lstm_lm": "LSTM",
    "mobilenetv2": "MobileNetV2",
    "transformer_lm": "Transformer",
}
DATA = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "cora": "Cora",
    "digits": "digits",
    "imagenet": "ImageNet",
    "ogbn-arxiv": "OGBN-Arxiv",
    "ptb": "PTB",
    "snli": "SNLI",
    "wikitext-103": "WikiText-103",
    "wikitext-2": "WikiText-2",
    "xnli": "XNLI",
}
QUANTIZERS = {
    "absmax": "AbsMax",
    "dorefa": "DoReFa",
    "pow2": "power of two",
    "sbm_full": "SBM full",
    "wageubn": "WAGEUBN",
}
SCHEDULES = {"CR": "CPT", "ramp": "progressive"}


def network(config: RunConfig) -> str:
    """The model as a paper writes it.

    >>> network(recipe("cifar100-resnet74-static-8-8")), network(recipe("ptb-lstm-static-8-8"))
    ('ResNet-74', 'LSTM')
    """
    name = config.model.name
    return NETWORKS.get(name) or f"ResNet-{name.removeprefix('imagenet_').removeprefix('resnet')}"


def group(config: RunConfig) -> str:
    """Model and data.

    >>> group(recipe("imagenet-resnet18-float32"))
    'ResNet-18, ImageNet'
    """
    return f"{network(config)}, {DATA[config.data.name]}"


def bits(text: ScheduleText) -> str:
    """A schedule's range.

    >>> bits(8), bits("CR:3-8:32"), bits("fp32")
    ('8', '3-8', '32')
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
    kind = str(precision.forward).partition(":")[0]
    method = SCHEDULES.get(kind, kind)
    if "-" not in forward:
        method = "gradients cycled" if "-" in backward else "static"
    by = QUANTIZERS.get(precision.quantizer, "")
    words = [by] if by and method == "static" else [by, method]
    return " ".join([*filter(None, words), f"{forward}/{backward}"])


def from_recipe(name: str, text: str | None = None) -> Method:
    """A recipe as a method, labelled by its bits unless a text is given."""
    config = recipe(name)
    return Method(label=text or label(config), config=config, group=group(config))


def from_recipes(*names: str) -> tuple[Method, ...]:
    """Recipes as methods."""
    return tuple(from_recipe(name) for name in names)


def with_published(methods: Iterable[Method], *where: str) -> tuple[Method, ...]:
    """The methods with what these tables and figures print of their recipes."""
    known = {info.name: info.published for info in list_recipes()}
    return tuple(
        replace(method, published=tuple(p for p in known[method.config.name] if p.where in where))
        for method in methods
    )


def small_study(
    name: str,
    description: str,
    methods: Iterable[Method],
    *,
    baseline: str,
    seeds: int = 5,
    kind: Kind = "comparison",
    notes: tuple[str, ...] = (),
) -> Study:
    """For one machine, whose cores the runs share: each has one thread."""
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


def of_family(
    family: str,
    *,
    text: Callable[[RunConfig], str] = label,
    place: Callable[[RunConfig], tuple[str, str]] | None = None,
) -> tuple[Method, ...]:
    """The cells of a published table or figure, in its order, with its values."""
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
    """What the recipes of a table say, each thing once."""
    return tuple(dict.fromkeys(note for entry in FAMILIES[family]() for note in entry.notes))
